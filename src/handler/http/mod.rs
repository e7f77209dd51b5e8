//! Runs a task as an HTTP request: POST with the payload, the response's body is the result.
//!
//! The effect lies with the server, which sees the task at least once: it can tell repetitions by
//! `Idempotency-Key` (the task's id; bytes other than visible ASCII and `%` itself are
//! percent-encoded) and refuse stale ones by `Queue-Worker-Fence`. 2xx is success; 408, 425, 429
//! and 5xx are worth another attempt, not before `Retry-After`; so is everything that went wrong on
//! the way. Other statuses fail for good, redirects too: they are not followed.

mod headers;
mod retry_after;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use url::Url;

use super::{ExternalHandler, Run};
use crate::clock::Clock;
use crate::domain::{Failure, FailureClass};

/// Connections to a server that are kept for reuse while nothing runs.
const IDLE_CONNECTIONS: usize = 32;

/// Gives headers for one request, or says in one sentence why it cannot: so a token that is mended
/// or rotated takes effect by itself.
#[derive(Clone)]
pub struct HeaderSource(Arc<dyn Fn() -> Result<BTreeMap<String, String>, String> + Send + Sync>);

impl HeaderSource {
    /// A source that asks `read` each time.
    pub fn new(
        read: impl Fn() -> Result<BTreeMap<String, String>, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(read))
    }
}

impl fmt::Debug for HeaderSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderSource")
    }
}

/// Where to send the tasks of a kind, and within which bounds.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// An `http` or `https` address.
    pub url: Url,
    /// Headers of each request; their values are treated as secrets.
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are read for each request.
    pub secret_headers: Option<HeaderSource>,
    /// For TCP and TLS together.
    pub connect_timeout: Duration,
    /// Bytes of a successful response kept as the result; the rest is not read.
    pub result_cap: usize,
    /// Bytes of another response kept as evidence.
    pub evidence_cap: usize,
}

impl HttpOptions {
    /// The defaults for an address: 5 s to connect, 64 KiB of result, 16 KiB of evidence.
    pub fn new(url: Url) -> Self {
        Self {
            url,
            headers: BTreeMap::new(),
            secret_headers: None,
            connect_timeout: Duration::from_secs(5),
            result_cap: 64 * 1024,
            evidence_cap: 16 * 1024,
        }
    }
}

/// The options of an HTTP handler cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Neither `http` nor `https`.
    #[error("url scheme `{scheme}` is not supported; use http or https")]
    Scheme {
        /// What the address begins with.
        scheme: String,
    },
    /// A header's name or value contains what HTTP does not allow there.
    #[error("header `{name}` is not valid; check its name and its value for control characters")]
    Header {
        /// Its name.
        name: String,
    },
    /// Most likely there are no root certificates.
    #[error("http client: {message}; install root certificates or set SSL_CERT_FILE")]
    Client {
        /// What the client said.
        message: String,
    },
}

/// The handler for kinds with an address.
#[derive(Debug)]
pub struct HttpHandler {
    client: Client,
    url: Url,
    headers: HeaderMap,
    secret_headers: Option<HeaderSource>,
    result_cap: usize,
    evidence_cap: usize,
}

impl HttpHandler {
    /// A handler with connections of its own. Installs the process's TLS provider if there is none.
    pub fn new(options: HttpOptions) -> Result<Self, HttpError> {
        let scheme = options.url.scheme();
        if !matches!(scheme, "http" | "https") {
            return Err(HttpError::Scheme { scheme: scheme.to_owned() });
        }
        // An error says that another one was installed before, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .redirect(Policy::none())
            .connect_timeout(options.connect_timeout)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .tcp_nodelay(true)
            .user_agent(concat!("queue-worker/", env!("CARGO_PKG_VERSION")));
        if scheme == "http" {
            // Plain text needs no root certificates, and must work where there are none.
            builder = builder.tls_certs_only([]);
        }
        let client =
            builder.build().map_err(|error| HttpError::Client { message: told(&error) })?;
        Ok(Self {
            client,
            headers: headers::configured(&options.headers)?,
            secret_headers: options.secret_headers,
            url: options.url,
            result_cap: options.result_cap,
            evidence_cap: options.evidence_cap,
        })
    }

    async fn post(&self, run: &Run) -> Result<Option<Bytes>, Failure> {
        let mut headers = self.headers.clone();
        if let Some(source) = &self.secret_headers {
            let secret = (source.0)().map_err(Failure::retry)?;
            headers::add(&mut headers, &secret)
                .map_err(|error| Failure::retry(error.to_string()))?;
        }
        headers::describe(&mut headers, run);
        let request = self.client.post(self.url.clone()).headers(headers);
        let response = request.body(run.task.payload.clone()).send().await;
        let response = response.map_err(|error| on_the_way(&error))?;
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|value| retry_after::parse(value, Clock::System.wall_ms()));
        if status.is_success() {
            let body = read(response, self.result_cap).await;
            let body = body.map_err(|error| on_the_way(&error))?;
            return Ok((!body.is_empty()).then_some(body));
        }
        // The status alone decides: a body that breaks off is still evidence of what there was.
        let tail = read(response, self.evidence_cap).await.unwrap_or_default();
        Err(refused(status, after).with_tail(tail))
    }
}

#[async_trait]
impl ExternalHandler for HttpHandler {
    async fn run(&self, run: Run) -> Result<Option<Bytes>, Failure> {
        tokio::select! {
            biased;
            result = self.post(&run) => result,
            () = run.cancel.cancelled() => {
                Err(Failure::retry("the request was cancelled").with_status("cancelled"))
            }
        }
    }
}

/// Reads a body up to `cap` bytes. What comes after that is dropped with the connection.
async fn read(mut response: Response, cap: usize) -> Result<Bytes, reqwest::Error> {
    let mut body = BytesMut::new();
    while body.len() < cap {
        let Some(chunk) = response.chunk().await? else { break };
        body.extend_from_slice(&chunk[..chunk.len().min(cap - body.len())]);
    }
    Ok(body.freeze())
}

fn refused(status: StatusCode, after: Option<Duration>) -> Failure {
    let again = matches!(status.as_u16(), 408 | 425 | 429) || status.is_server_error();
    let message = if status.is_redirection() {
        format!("the server answered {status}; redirects are not followed, correct `url`")
    } else {
        format!("the server answered {status}")
    };
    let class = if again { FailureClass::Retry { after } } else { FailureClass::ForGood };
    Failure { class, ..Failure::retry(message) }.with_status(format!("http {}", status.as_u16()))
}

fn on_the_way(error: &reqwest::Error) -> Failure {
    let status = if error.is_timeout() {
        "timeout"
    } else if error.is_connect() {
        "connect"
    } else {
        "http"
    };
    Failure::retry(format!("the request failed: {}", told(error))).with_status(status)
}

/// The error with its causes, and without the address, which may hold a password.
fn told(error: &reqwest::Error) -> String {
    let text = match () {
        () if error.is_builder() => "it cannot be set up",
        () if error.is_connect() => "no connection",
        () => "no answer",
    };
    let mut text = text.to_owned();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
