//! The other side of the `http` tasks: applies by idempotency key and refuses older fences.
//!
//! As much of HTTP/1.1 as the worker's client speaks: requests with a length, answered in order on
//! a connection that stays open. The body says what to do: milliseconds to take, failures to give
//! first, the status after that, and the resource whose fence counts (`-` for the task itself).

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The longest head of a request, and the longest body, in bytes.
const MOST_BYTES: u64 = 64 * 1024;
/// More connections than this at once are closed as they come.
const MOST_CONNECTIONS: usize = 1_000;

/// What was received.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Requests by task.
    pub(super) requests: HashMap<String, u32>,
    /// Tasks that were applied; a key that comes again changes nothing.
    pub(super) applied: HashMap<String, i64>,
    /// Requests under a fence older than one seen before.
    pub(super) refused: u32,
    fences: HashMap<String, i64>,
}

/// The receiver; dropping it closes every connection.
#[derive(Debug)]
pub(super) struct Receiver {
    port: u16,
    received: Arc<Mutex<Received>>,
    _listener: JoinSet<()>,
}

impl Receiver {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("listen on a loopback port for the http tasks")?;
        let port = listener.local_addr()?.port();
        let received = Arc::new(Mutex::default());
        let mut owner = JoinSet::new();
        owner.spawn(accept(listener, Arc::clone(&received)));
        Ok(Self { port, received, _listener: owner })
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    pub(super) fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(listener: TcpListener, received: Arc<Mutex<Received>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                if connections.len() < MOST_CONNECTIONS {
                    let received = Arc::clone(&received);
                    // A connection that breaks is the sender's to mend.
                    connections.spawn(async move { serve(stream, &received).await.is_ok() });
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, received: &Mutex<Received>) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    while let Some(request) = Request::read(&mut stream).await? {
        tokio::time::sleep(request.takes).await;
        let status = received.lock().unwrap_or_else(PoisonError::into_inner).judge(&request);
        let answer = format!("HTTP/1.1 {status} -\r\ncontent-length: 0\r\n\r\n");
        stream.get_mut().write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

/// A request of the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Request {
    key: String,
    fence: i64,
    attempt: u32,
    takes: Duration,
    failures: u32,
    status: u16,
    resource: Option<String>,
}

impl Request {
    /// The next one on the connection; `None` at its end.
    async fn read(stream: &mut BufReader<TcpStream>) -> anyhow::Result<Option<Self>> {
        let mut headers = HashMap::new();
        let mut head = stream.take(MOST_BYTES);
        let mut line = String::new();
        if head.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        loop {
            line.clear();
            if head.read_line(&mut line).await? == 0 {
                bail!("a request breaks off in its head");
            }
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length: u64 = headers.get("content-length").context("no length")?.parse()?;
        let mut body = String::new();
        head.into_inner().take(length.min(MOST_BYTES)).read_to_string(&mut body).await?;
        Self::parse(&headers, &body).map(Some)
    }

    fn parse(headers: &HashMap<String, String>, body: &str) -> anyhow::Result<Self> {
        let header = |name: &str| {
            headers.get(name).map(String::as_str).with_context(|| format!("no header {name}"))
        };
        let mut words = body.split_ascii_whitespace();
        let mut word = || words.next().context("the body has too few words");
        Ok(Self {
            key: header("idempotency-key")?.to_owned(),
            fence: header("queue-worker-fence")?.parse()?,
            attempt: header("queue-worker-attempt")?.parse()?,
            takes: Duration::from_millis(word()?.parse()?),
            failures: word()?.parse()?,
            status: word()?.parse()?,
            resource: Some(word()?.to_owned()).filter(|name| name != "-"),
        })
    }
}

impl Received {
    /// The status of the answer, and what the request changes here.
    fn judge(&mut self, request: &Request) -> u16 {
        *self.requests.entry(request.key.clone()).or_default() += 1;
        let guarded = request.resource.as_ref().unwrap_or(&request.key);
        let newest = self.fences.entry(guarded.clone()).or_insert(request.fence);
        if request.fence < *newest {
            self.refused += 1;
            return 409;
        }
        *newest = request.fence;
        if request.attempt <= request.failures {
            return 503;
        }
        if request.status == 200 {
            self.applied.entry(request.key.clone()).or_insert(request.fence);
        }
        request.status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: &str, fence: i64, attempt: u32, body: &str) -> Request {
        let headers = [
            ("idempotency-key", key.to_owned()),
            ("queue-worker-fence", fence.to_string()),
            ("queue-worker-attempt", attempt.to_string()),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value)).into();
        Request::parse(&headers, body).expect("a request")
    }

    #[test]
    fn a_key_is_applied_once_and_an_older_fence_is_refused() {
        let mut received = Received::default();
        assert_eq!(received.judge(&request("a", 2, 1, "1 1 200 -")), 503);
        assert_eq!(received.judge(&request("a", 3, 2, "1 1 200 -")), 200);
        assert_eq!(received.judge(&request("a", 3, 2, "1 1 200 -")), 200);
        assert_eq!(received.judge(&request("a", 2, 1, "1 1 200 -")), 409);
        assert_eq!((received.applied["a"], received.requests["a"], received.refused), (3, 4, 1));
    }

    #[test]
    fn on_a_resource_its_fence_counts() {
        let mut received = Received::default();
        assert_eq!(received.judge(&request("a", 7, 1, "1 0 200 r")), 200);
        assert_eq!(received.judge(&request("b", 6, 1, "1 0 200 r")), 409);
        assert_eq!(received.judge(&request("b", 8, 1, "1 0 422 r")), 422);
        assert!(!received.applied.contains_key("b"));
    }
}
