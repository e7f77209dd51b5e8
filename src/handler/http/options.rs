//! Where to send the tasks of a kind, within which bounds, and what can be wrong with that.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

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

    /// The headers now.
    pub(super) fn read(&self) -> Result<BTreeMap<String, String>, String> {
        (self.0)()
    }
}

impl fmt::Debug for HeaderSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderSource")
    }
}

/// Where to send the tasks of a kind, and within which bounds.
#[derive(Clone)]
pub struct HttpOptions {
    /// An `http` or `https` address.
    pub url: Url,
    /// Headers of each request; their values are treated as secrets.
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are read for each request.
    pub secret_headers: Option<HeaderSource>,
    /// An `http` or `https` address of a proxy that all requests go through. Those that the
    /// environment names are never used.
    pub proxy: Option<Url>,
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
            proxy: None,
            connect_timeout: Duration::from_secs(5),
            result_cap: 64 * 1024,
            evidence_cap: 16 * 1024,
        }
    }
}

impl fmt::Debug for HttpOptions {
    /// Without the values of headers and without what the address holds beyond its host: both may
    /// be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOptions")
            .field("host", &self.url.host_str())
            .field("headers", &self.headers.keys())
            .finish_non_exhaustive()
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
    /// A proxy that is neither `http` nor `https`.
    #[error("proxy scheme `{scheme}` is not supported; use http or https")]
    Proxy {
        /// What its address begins with.
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
