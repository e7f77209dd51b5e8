//! The handler: from a run to a request, and from the response to a result or a failure.

use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Proxy, Response, StatusCode};
use url::Url;

use super::options::{HeaderSource, HttpError, HttpOptions};
use super::{headers, retry_after};
use crate::clock::Clock;
use crate::domain::{Failure, FailureClass};
use crate::handler::{ExternalHandler, Run};

/// Connections to a server that are kept for reuse while nothing runs.
const IDLE_CONNECTIONS: usize = 32;
/// A connection of HTTP/2 is shared by all tasks of a kind, so it is asked for a sign of life when a
/// request waits and nothing has come for this long: far less than tasks have, and rare enough for
/// servers that count pings. While nothing waits it is not asked, since servers count those more
/// strictly.
const PING_AFTER: Duration = Duration::from_secs(15);
/// The connection is dead, and its requests have failed, when no sign has come within this: a server
/// that is busy with something else for a while is not dead.
const PING_LIMIT: Duration = Duration::from_secs(15);
/// How long a server may take over the body of a refusal, which explains it and decides nothing.
const EVIDENCE_LIMIT: Duration = Duration::from_secs(2);

/// The handler for kinds with an address.
pub struct HttpHandler {
    client: Client,
    url: Url,
    headers: HeaderMap,
    secret_headers: Option<HeaderSource>,
    result_cap: usize,
    evidence_cap: usize,
}

impl fmt::Debug for HttpHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpHandler").field("host", &self.url.host_str()).finish_non_exhaustive()
    }
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
            .http2_keep_alive_interval(PING_AFTER)
            .http2_keep_alive_timeout(PING_LIMIT)
            .tcp_nodelay(true)
            // Payloads and secrets go to whom the configuration names, whatever the environment says.
            .no_proxy()
            .user_agent(concat!("queue-worker/", env!("CARGO_PKG_VERSION")));
        let secure = |url: &Url| url.scheme() == "https";
        if let Some(proxy) = &options.proxy {
            builder = builder.proxy(through(proxy)?);
        }
        if !secure(&options.url) && !options.proxy.as_ref().is_some_and(secure) {
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
            let secret = source.read().map_err(Failure::retry)?;
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
        let mut body = BytesMut::new();
        if status.is_success() {
            let read = read(response, self.result_cap, &mut body).await;
            read.map_err(|error| on_the_way(&error))?;
            return Ok((!body.is_empty()).then(|| body.freeze()));
        }
        // The status alone decides: a body that breaks off, or does not end, is still evidence of
        // what there was.
        let reading = read(response, self.evidence_cap, &mut body);
        let _ = tokio::time::timeout(EVIDENCE_LIMIT, reading).await;
        Err(refused(status, after).with_tail(body))
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

/// A proxy for all requests; user and password in its address are for the proxy.
fn through(proxy: &Url) -> Result<Proxy, HttpError> {
    if !matches!(proxy.scheme(), "http" | "https") {
        return Err(HttpError::Proxy { scheme: proxy.scheme().to_owned() });
    }
    Proxy::all(proxy.clone()).map_err(|error| HttpError::Client { message: told(&error) })
}

/// Reads up to `cap` bytes of a body. What comes after that is dropped with the connection.
async fn read(
    mut response: Response,
    cap: usize,
    body: &mut BytesMut,
) -> Result<(), reqwest::Error> {
    while body.len() < cap {
        let Some(chunk) = response.chunk().await? else { break };
        body.extend_from_slice(&chunk[..chunk.len().min(cap - body.len())]);
    }
    Ok(())
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
