//! One request a connection, over a bare socket: what a server says, byte by byte.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses another part")]

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(30);

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// Sends bytes and reads until the server closes; `None` where nobody listens or nothing came.
pub async fn send(port: u16, request: &[u8]) -> Option<Answer> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        // The server may close before it has read everything.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).ok()
    };
    let text = tokio::time::timeout(LIMIT, exchange).await.expect("an answer in time")?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

/// A request without a body.
pub async fn request(port: u16, method: &str, path: &str) -> Option<Answer> {
    send(port, format!("{method} {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes()).await
}

/// GET; status and body.
pub async fn get(port: u16, path: &str) -> (u16, String) {
    let answer = request(port, "GET", path).await;
    answer.map_or((0, "nobody listens".to_owned()), |answer| (answer.status, answer.body))
}
