//! The listener: HTTP/1.1, one request a connection, everything with a limit.
//!
//! Whoever opens many connections and says nothing keeps nobody out: the oldest makes room.
//!
//! It has an OS thread and a runtime of its own, so that it answers while the coordinator is busy,
//! and more so while it is stuck. A port that is taken is warned about once and tried again; the
//! worker never ends for it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

use super::Pages;
use crate::clock::Clock;
use crate::protocol::backoff::Backoff;
use crate::telemetry::Health;

/// No more connections are served at once. One more closes the oldest: it had the most time, and an
/// answer takes milliseconds, so what is old is idle or slow.
const MOST_CONNECTIONS: usize = 64;
/// A connection is closed after this, whatever it does.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// A request's head must have come within this.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// The longest head of a request, in bytes: twice of what browsers send.
const MOST_HEAD_BYTES: usize = 16 * 1024;
/// The most headers of a request.
const MOST_HEADERS: usize = 64;
/// Between two tries to listen on a port that is taken.
const LISTEN_AGAIN: Backoff =
    Backoff { first: Duration::from_secs(1), most: Duration::from_secs(30) };
/// After a connection that could not be accepted, mostly for want of file descriptors.
const AFTER_REFUSAL: Duration = Duration::from_millis(100);

/// The running listener.
#[derive(Debug)]
pub struct Server {
    thread: std::thread::JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl Server {
    /// Starts a thread that serves the pages on `address`.
    pub fn start(address: SocketAddr, pages: Pages) -> std::io::Result<Self> {
        let (end, ended) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || {
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = ended => {}
                    () = serve(address, Arc::new(pages)) => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("web".to_owned()).spawn(serve)?;
        Ok(Self { thread, end })
    }

    /// Closes the listener and all connections; waits only for a thread that has ended by itself.
    pub fn end(self) {
        let _ = self.end.send(());
        if self.thread.is_finished() {
            let _ = self.thread.join();
        }
    }
}

/// Serves until it is dropped.
async fn serve(address: SocketAddr, pages: Arc<Pages>) {
    let listener = listen(address).await;
    let mut connections = JoinSet::new();
    let mut by_age: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    by_age.retain(|connection| !connection.is_finished());
                    if by_age.len() >= MOST_CONNECTIONS
                        && let Some(oldest) = by_age.pop_front()
                    {
                        oldest.abort();
                    }
                    let pages = Arc::clone(&pages);
                    by_age.push_back(connections.spawn(async move {
                        let _ = tokio::time::timeout(CONNECTION_LIMIT, converse(stream, pages)).await;
                    }));
                }
                Err(error) => {
                    tracing::debug!("no connection accepted on {address}: {error}");
                    tokio::time::sleep(AFTER_REFUSAL).await;
                }
            },
        }
    }
}

/// Listens as soon as the port is free.
async fn listen(address: SocketAddr) -> TcpListener {
    let health = Health::new("web", Clock::System);
    let mut failures = 0;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                health.up();
                let address = listener.local_addr().unwrap_or(address);
                tracing::info!("health and metrics on http://{address}");
                return listener;
            }
            Err(error) => {
                health.down(&format!(
                    "failed to listen on {address}: {error}; trying again, or set web.listen to \
                     another port and restart"
                ));
                failures += 1;
                tokio::time::sleep(LISTEN_AGAIN.wait(failures, 1.0)).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, pages: Arc<Pages>) {
    let service = service_fn(move |request| {
        let answer = pages.answer(&request);
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(MOST_HEAD_BYTES)
        .max_headers(MOST_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!("web: {error}");
    }
}
