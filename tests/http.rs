//! HTTP handlers against a server of a few lines that answers what the test tells it to.

#[path = "http/dead_connection.rs"]
mod dead_connection;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use queue_worker::clock::Clock;
use queue_worker::domain::{
    Failure, FailureClass, Fence, Kind, PayloadHash, QueueName, Task, TaskId,
};
use queue_worker::handler::http::{HttpHandler, HttpOptions};
use queue_worker::handler::{ExternalHandler, Run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use url::Url;

const LIMIT: Duration = Duration::from_secs(20);
const PAYLOAD: &[u8] = b"pay\0load";

fn run() -> Run {
    let kind = Kind::new("notify").unwrap();
    let payload = Bytes::from_static(PAYLOAD);
    let hash = PayloadHash::of(&kind, &payload, None);
    let task = Task {
        id: TaskId::new("order 17/ä%").unwrap(),
        queue: QueueName::new("mail").unwrap(),
        kind,
        payload,
        lock_key: None,
        max_attempts: None,
        timeout: None,
        not_before_ms: None,
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        hash,
    };
    Run {
        task: task.into(),
        fence: Fence(9),
        attempt: 3,
        deadline: Clock::System.now() + LIMIT,
        deadline_ms: 0,
        cancel: CancellationToken::new(),
    }
}

struct Server {
    listener: TcpListener,
    handler: HttpHandler,
}

impl Server {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(adjust: impl FnOnce(&mut HttpOptions)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?a=b", listener.local_addr().unwrap());
        let mut options = HttpOptions::new(Url::parse(&url).unwrap());
        adjust(&mut options);
        Self { listener, handler: HttpHandler::new(options).unwrap() }
    }

    /// Takes one connection, reads the request, answers; returns the request and the connection.
    async fn answer(&self, response: &str) -> (String, TcpStream) {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(PAYLOAD) {
            assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0, "the request broke off");
        }
        stream.write_all(response.as_bytes()).await.unwrap();
        (String::from_utf8(request).unwrap(), stream)
    }

    async fn exchange(&self, response: &str) -> Result<Option<Bytes>, Failure> {
        let run = within(self.handler.run(run()));
        // The connection is closed at once after the answer.
        let (result, ()) = tokio::join!(run, async { drop(self.answer(response).await) });
        result
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("it took too long")
}

fn response(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn success_gives_the_body_and_the_request_says_everything() {
    let server = Server::with(|options| {
        options.headers.insert("x-token".into(), "s3cret".into());
    })
    .await;
    let response = response("200 OK", "", "done");
    let (result, (request, _)) =
        tokio::join!(within(server.handler.run(run())), within(server.answer(&response)));
    assert_eq!(result.unwrap().unwrap(), "done");
    assert!(request.starts_with("POST /hook?a=b HTTP/1.1\r\n"), "{request}");
    for header in [
        "idempotency-key: order%2017/%C3%A4%25",
        "queue-worker-kind: notify",
        "queue-worker-attempt: 3",
        "queue-worker-fence: 9",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "content-type: application/octet-stream",
        "content-length: 8",
        "x-token: s3cret",
    ] {
        assert!(request.contains(&format!("\r\n{header}\r\n")), "{header}: {request}");
    }
    assert!(!format!("{:?}", server.handler).contains("s3cret"));
}

#[tokio::test]
async fn no_body_is_no_result_and_the_content_type_can_be_set() {
    let server = Server::with(|options| {
        options.headers.insert("Content-Type".into(), "application/json".into());
    })
    .await;
    let response = response("204 No Content", "", "");
    let (result, (request, _)) =
        tokio::join!(within(server.handler.run(run())), server.answer(&response));
    assert_eq!(result.unwrap(), None);
    assert_eq!(request.matches("content-type:").count(), 1, "{request}");
    assert!(request.contains("content-type: application/json"));
}

#[tokio::test]
async fn statuses_decide_on_another_attempt() {
    let server = Server::start().await;
    for status in ["408 A", "425 B", "429 C", "500 D", "503 E"] {
        let failure = server.exchange(&response(status, "", "why")).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::Retry { after: None }, "{status}");
        assert_eq!(failure.status, Some(format!("http {}", &status[..3])));
        assert_eq!(failure.tail, "why");
    }
    for status in ["400 A", "404 B", "409 C", "422 D", "304 E"] {
        let failure = server.exchange(&response(status, "", "")).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::ForGood, "{status}");
        assert_eq!(failure.status, Some(format!("http {}", &status[..3])));
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let server = Server::start().await;
    let there = format!("location: http://{}/\r\n", server.listener.local_addr().unwrap());
    for status in ["301 A", "302 B", "307 C", "308 D"] {
        let failure = server.exchange(&response(status, &there, "")).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::ForGood);
        assert!(failure.message.contains("redirects"), "{}", failure.message);
    }
}

#[tokio::test]
async fn retry_after_is_honoured_in_both_forms_and_bounded() {
    let server = Server::start().await;
    let after = async |value: &str| {
        let header = format!("retry-after: {value}\r\n");
        let result = server.exchange(&response("503 Busy", &header, "")).await;
        match result.unwrap_err().class {
            FailureClass::Retry { after } => after,
            other @ (FailureClass::ForGood | FailureClass::Postponed { .. }) => panic!("{other:?}"),
        }
    };
    assert_eq!(after("17").await, Some(Duration::from_secs(17)));
    assert_eq!(after("100000").await, Some(Duration::from_secs(3600)));
    assert_eq!(after("Fri, 31 Dec 9999 23:59:59 GMT").await, Some(Duration::from_secs(3600)));
    assert_eq!(after("Sun, 06 Nov 1994 08:49:37 GMT").await, Some(Duration::ZERO));
    assert_eq!(after("later").await, None);
}

#[tokio::test]
async fn a_body_without_end_is_read_up_to_the_cap() {
    let server = Server::with(|options| options.result_cap = 1000).await;
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n".to_owned();
    let first = head + &"x".repeat(600);
    let rest = async {
        let (_, mut stream) = server.answer(&first).await;
        stream.write_all("x".repeat(600).as_bytes()).await.unwrap();
        // Open for as long as the client reads: it must not wait for the rest.
        let _ = stream.read_buf(&mut Vec::new()).await;
    };
    let (result, ()) = tokio::join!(within(server.handler.run(run())), rest);
    assert_eq!(result.unwrap().unwrap(), "x".repeat(1000));
}

#[tokio::test]
async fn a_refusal_stands_whatever_becomes_of_its_body() {
    let server = Server::start().await;
    let head = "HTTP/1.1 422 No\r\ncontent-length: 1000000\r\n\r\nwhy: ";
    let stalled = async {
        let (_, mut stream) = server.answer(head).await;
        // Nothing more comes, and the connection stays open until the client has had enough.
        let _ = within(stream.read_buf(&mut Vec::new())).await;
    };
    let (result, ()) = tokio::join!(within(server.handler.run(run())), stalled);
    let failure = result.unwrap_err();
    assert_eq!(failure.class, FailureClass::ForGood);
    assert_eq!((failure.status.as_deref(), &failure.tail[..]), (Some("http 422"), &b"why: "[..]));
}

#[tokio::test]
async fn a_proxy_is_used_if_the_options_name_one() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://me:hunter@{}/", proxy.local_addr().unwrap());
    let mut server =
        Server::with(|options| options.proxy = Some(Url::parse(&address).unwrap())).await;
    server.listener = proxy;
    let response = response("200 OK", "", "through");
    let (result, (request, _)) =
        tokio::join!(within(server.handler.run(run())), server.answer(&response));
    assert_eq!(result.unwrap().unwrap(), "through");
    assert!(request.starts_with("POST http://127.0.0.1:"), "{request}");
    assert!(request.contains("\r\nproxy-authorization: Basic bWU6aHVudGVy\r\n"), "{request}");
}

#[test]
fn the_environment_s_proxies_get_nothing() {
    let mut test = std::process::Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "success_gives_the_body_and_the_request_says_everything"]);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        // Nobody listens there.
        test.env(name, "http://127.0.0.1:1/");
    }
    let done = test.env_remove("no_proxy").env_remove("NO_PROXY").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
async fn what_goes_wrong_on_the_way_is_tried_again() {
    let mut server = Server::start().await;
    // A body that breaks off.
    let broken = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
    let failure = server.exchange(broken).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Retry { after: None });
    // No HTTP at all.
    let failure = server.exchange("SSH-2.0-x\r\n").await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Retry { after: None });
    // Nobody there.
    server.listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let failure = within(server.handler.run(run())).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Retry { after: None });
    assert_eq!(failure.status.as_deref(), Some("connect"));
    assert!(failure.message.contains("refused"), "{}", failure.message);
    assert!(!failure.message.contains("hook"), "the address stays out: {}", failure.message);
}

#[tokio::test]
async fn cancelling_aborts_the_request() {
    let server = Server::start().await;
    let run = run();
    let cancel = run.cancel.clone();
    let client = within(server.handler.run(run));
    let aborted = async {
        let (_, mut stream) = server.answer("").await;
        cancel.cancel();
        // The end of the connection, not a timeout.
        within(stream.read_buf(&mut Vec::new())).await.unwrap_or(0)
    };
    let (result, read) = tokio::join!(client, aborted);
    assert_eq!(result.unwrap_err().status.as_deref(), Some("cancelled"));
    assert_eq!(read, 0);
}

#[test]
fn options_are_checked() {
    let error = HttpHandler::new(HttpOptions::new(Url::parse("ftp://x/").unwrap())).unwrap_err();
    assert!(error.to_string().contains("ftp"));
    let mut options = HttpOptions::new(Url::parse("http://x/").unwrap());
    options.proxy = Some(Url::parse("socks5://x/").unwrap());
    assert!(HttpHandler::new(options).unwrap_err().to_string().contains("socks5"));
    assert!(HttpHandler::new(HttpOptions::new(Url::parse("https://x/").unwrap())).is_ok());
}
