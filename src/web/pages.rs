//! Which path answers what. Only GET and HEAD, no request body, and nothing that changes anything.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Body;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Method, Request, Response, StatusCode};

use super::{Metrics, Vitals};

/// Plain words.
const TEXT: &str = "text/plain; charset=utf-8";
/// The text format of Prometheus, version 0.0.4.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

const INDEX: &str = concat!(
    "queue-worker ",
    env!("CARGO_PKG_VERSION"),
    "\n\n/livez    every loop comes round\n/readyz   tasks are pulled\n/metrics  for Prometheus\n"
);

/// All pages of a worker.
#[derive(Debug)]
pub struct Pages {
    vitals: Vitals,
    metrics: Mutex<Metrics>,
}

impl Pages {
    /// The pages about what `vitals` and `metrics` see.
    pub fn new(vitals: Vitals, metrics: Metrics) -> Self {
        Self { vitals, metrics: Mutex::new(metrics) }
    }

    /// Answers a request.
    pub fn answer<B: Body>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        if !request.body().is_end_stream() {
            return page(StatusCode::PAYLOAD_TOO_LARGE, TEXT, "no page takes a body\n");
        }
        match request.uri().path() {
            "/" => page(StatusCode::OK, TEXT, INDEX),
            "/livez" => match self.vitals.stuck() {
                None => page(StatusCode::OK, TEXT, "alive\n"),
                Some(stuck) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{stuck}\n")),
            },
            "/readyz" => match self.vitals.not_ready() {
                None => page(StatusCode::OK, TEXT, "ready\n"),
                Some(why) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
            },
            "/metrics" => self.metrics(),
            _ => page(
                StatusCode::NOT_FOUND,
                TEXT,
                "not found; there are /livez, /readyz, /metrics\n",
            ),
        }
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        let rendered = self.metrics.lock().unwrap_or_else(PoisonError::into_inner).render();
        match rendered {
            Ok(text) => page(StatusCode::OK, PROMETHEUS, text),
            Err(error) => {
                tracing::error!("metrics not rendered: {error}");
                page(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the metrics could not be rendered\n")
            }
        }
    }
}

fn page(
    status: StatusCode,
    content_type: &'static str,
    text: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
