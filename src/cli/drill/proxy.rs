//! A proxy in front of Redis that loses replies: the workers' connections go through it.
//!
//! When told to, it waits for the next acknowledgement, passes it on, lets Redis apply it, and then
//! swallows whatever Redis says and closes the connection: the worker cannot know whether its
//! acknowledgement took place. Otherwise bytes pass as they are.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Bytes carried at once.
const CHUNK: usize = 16 * 1024;
/// More connections than this at once are closed as they come; four workers have some thirty.
const MOST_CONNECTIONS: usize = 1_000;

/// The proxy; dropping it closes every connection.
#[derive(Debug)]
pub(super) struct AckDropper {
    port: u16,
    traps: Arc<Traps>,
    _listener: JoinSet<()>,
}

/// Acknowledgements to be lost, and how many were.
#[derive(Debug, Default)]
struct Traps {
    set: AtomicU32,
    sprung: AtomicU32,
}

impl Traps {
    /// Takes a trap if one is set.
    fn spring(&self) -> bool {
        let taken =
            self.set.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |set| set.checked_sub(1));
        if taken.is_ok() {
            self.sprung.fetch_add(1, Ordering::SeqCst);
        }
        taken.is_ok()
    }
}

impl AckDropper {
    /// Listens on a free loopback port and forwards to `target`.
    pub(super) async fn start(target: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("listen on a loopback port for the proxy")?;
        let port = listener.local_addr()?.port();
        let traps = Arc::new(Traps::default());
        let mut owner = JoinSet::new();
        owner.spawn(accept(listener, target, Arc::clone(&traps)));
        Ok(Self { port, traps, _listener: owner })
    }

    /// Where the workers find Redis.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Loses the reply to the next acknowledgement.
    pub(super) fn drop_next(&self) {
        self.traps.set.fetch_add(1, Ordering::SeqCst);
    }

    /// How many replies were lost.
    pub(super) fn dropped(&self) -> u32 {
        self.traps.sprung.load(Ordering::SeqCst)
    }
}

async fn accept(listener: TcpListener, target: u16, traps: Arc<Traps>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                if connections.len() < MOST_CONNECTIONS {
                    connections.spawn(serve(client, target, Arc::clone(&traps)));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(client: TcpStream, target: u16, traps: Arc<Traps>) {
    // While Redis is away the client's connection is closed at once, as a refusal would be.
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await else { return };
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let deaf = AtomicBool::new(false);
    tokio::select! {
        () = requests(client_reads, server_writes, &traps, &deaf) => {}
        () = replies(server_reads, client_writes, &deaf) => {}
    }
}

/// Carries what the worker says, and notices an acknowledgement.
async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    traps: &Traps,
    deaf: &AtomicBool,
) {
    let mut chunk = vec![0; CHUNK];
    loop {
        let Ok(count @ 1..) = from.read(&mut chunk).await else { return };
        let said = &chunk[..count];
        if said.windows(4).any(|word| word == b"XACK") && traps.spring() {
            deaf.store(true, Ordering::SeqCst);
        }
        if to.write_all(said).await.is_err() {
            return;
        }
    }
}

/// Carries what Redis says; on a deaf connection its next word is the end.
async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, deaf: &AtomicBool) {
    let mut chunk = vec![0; CHUNK];
    loop {
        let Ok(count @ 1..) = from.read(&mut chunk).await else { return };
        if deaf.load(Ordering::SeqCst) || to.write_all(&chunk[..count]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every chunk that it gets, and tells what it got.
    async fn echo() -> (u16, JoinSet<Vec<u8>>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind");
        let port = listener.local_addr().expect("an address").port();
        let mut owner = JoinSet::new();
        owner.spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accept");
            let (mut got, mut chunk) = (Vec::new(), [0; 64]);
            while let Ok(count @ 1..) = stream.read(&mut chunk).await {
                got.extend_from_slice(&chunk[..count]);
                if stream.write_all(b"+OK\r\n").await.is_err() {
                    break;
                }
            }
            got
        });
        (port, owner)
    }

    #[tokio::test]
    async fn an_acknowledgement_arrives_and_its_reply_does_not() {
        let (port, mut server) = echo().await;
        let proxy = AckDropper::start(port).await.expect("start");
        let address = (Ipv4Addr::LOCALHOST, proxy.port());
        let mut client = TcpStream::connect(address).await.expect("connect");
        let mut reply = [0; 5];
        proxy.drop_next();
        client.write_all(b"PING").await.expect("write");
        client.read_exact(&mut reply).await.expect("only acknowledgements are hit");
        client.write_all(b"XACK").await.expect("write");
        assert_eq!(client.read(&mut reply).await.unwrap_or(0), 0, "no reply, and the end");
        assert_eq!(proxy.dropped(), 1);
        let got = server.join_next().await.expect("one").expect("no panic");
        assert_eq!(got, b"PINGXACK");
    }
}
