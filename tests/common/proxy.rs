//! A TCP proxy on a loopback port that can play a bad network.
//!
//! Bytes are forwarded in both directions until told otherwise. What was swallowed while silent is
//! gone for good, so a connection that lived through silence is not to be trusted afterwards.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How far a throttled connection may be behind its rate and still catch up.
const CATCH_UP: Duration = Duration::from_millis(50);

/// What happens to the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Forward,
    /// Each chunk waits this long first.
    Delay(Duration),
    /// At most so many bytes a second, each way and connection.
    Throttle(u32),
    /// Read and thrown away, in both directions, the server's farewell too; new connections are
    /// accepted and hear nothing.
    Silent,
    /// Only what the server says is thrown away: commands are applied, replies are lost.
    SwallowReplies,
    /// New connections are closed at once.
    Refuse,
}

/// The proxy; dropping it closes every connection.
#[derive(Debug)]
pub struct TcpProxy {
    port: u16,
    mode: watch::Sender<Mode>,
    cut: Arc<Notify>,
    _listener: JoinSet<()>,
}

impl TcpProxy {
    /// Listens on a free loopback port and forwards to `target_port`.
    pub async fn start(target_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mode, modes) = watch::channel(Mode::Forward);
        let cut = Arc::new(Notify::new());
        let mut owner = JoinSet::new();
        owner.spawn(accept(listener, target_port, modes, Arc::clone(&cut)));
        Self { port, mode, cut, _listener: owner }
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Forwards again at once.
    pub fn forward(&self) {
        self.mode.send_replace(Mode::Forward);
    }

    /// Holds every chunk back for `delay`.
    pub fn delay(&self, delay: Duration) {
        self.mode.send_replace(Mode::Delay(delay));
    }

    /// Forwards at most so many bytes a second, each way and connection.
    pub fn throttle(&self, bytes_per_second: u32) {
        self.mode.send_replace(Mode::Throttle(bytes_per_second));
    }

    /// Swallows all bytes in both directions; connections stay open.
    pub fn silence(&self) {
        self.mode.send_replace(Mode::Silent);
    }

    /// Lets requests through and swallows the replies.
    pub fn swallow_replies(&self) {
        self.mode.send_replace(Mode::SwallowReplies);
    }

    /// Closes every open connection; new ones are still accepted.
    pub fn cut(&self) {
        self.cut.notify_waiters();
    }

    /// Closes every open connection, and new ones as soon as they come.
    pub fn refuse(&self) {
        self.mode.send_replace(Mode::Refuse);
        self.cut();
    }
}

async fn accept(
    listener: TcpListener,
    target_port: u16,
    modes: watch::Receiver<Mode>,
    cut: Arc<Notify>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                if *modes.borrow() == Mode::Refuse {
                    continue;
                }
                connections.spawn(serve(client, target_port, modes.clone(), Arc::clone(&cut)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(
    client: TcpStream,
    target_port: u16,
    modes: watch::Receiver<Mode>,
    cut: Arc<Notify>,
) {
    let cut = cut.notified();
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target_port)).await else { return };
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    tokio::select! {
        () = cut => {}
        () = carry(client_reads, server_writes, modes.clone(), false) => {}
        () = carry(server_reads, client_writes, modes, true) => {}
    }
}

/// Carries bytes one way until either end closes.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    modes: watch::Receiver<Mode>,
    is_reply: bool,
) {
    let mut chunk = vec![0; 16 * 1024];
    let mut due = Instant::now();
    loop {
        let read = from.read(&mut chunk).await;
        let mode = *modes.borrow();
        let Ok(count @ 1..) = read else {
            if is_reply && mode == Mode::Silent {
                std::future::pending::<()>().await;
            }
            return;
        };
        match mode {
            Mode::Silent | Mode::Refuse => continue,
            Mode::SwallowReplies if is_reply => continue,
            Mode::SwallowReplies | Mode::Forward => {}
            Mode::Delay(delay) => tokio::time::sleep(delay).await,
            Mode::Throttle(rate) => {
                // What a sleep was too long is caught up with, an idle time is not.
                due = due.max(Instant::now() - CATCH_UP);
                due += Duration::from_secs_f64(
                    f64::from(u32::try_from(count).unwrap()) / f64::from(rate),
                );
                tokio::time::sleep_until(due).await;
            }
        }
        if to.write_all(&chunk[..count]).await.is_err() {
            return;
        }
    }
}
