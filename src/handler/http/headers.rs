//! The headers of a request: what was configured, and what tells the server about the run.

use std::collections::BTreeMap;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::options::HttpError;
use crate::handler::Run;

/// The configured headers, with a content type if they have none.
pub(super) fn configured(headers: &BTreeMap<String, String>) -> Result<HeaderMap, HttpError> {
    let mut map = HeaderMap::new();
    map.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    add(&mut map, headers)?;
    Ok(map)
}

/// Adds headers, their values as secrets.
pub(super) fn add(
    map: &mut HeaderMap,
    headers: &BTreeMap<String, String>,
) -> Result<(), HttpError> {
    for (name, value) in headers {
        let parsed = HeaderName::try_from(name.as_str()).ok();
        let parsed = parsed.zip(HeaderValue::try_from(value.as_str()).ok());
        // The value may be a secret: the error names the header only.
        let (name, mut value) = parsed.ok_or_else(|| HttpError::Header { name: name.clone() })?;
        value.set_sensitive(true);
        map.insert(name, value);
    }
    Ok(())
}

/// Adds the headers of one run; they win over configured ones.
pub(super) fn describe(map: &mut HeaderMap, run: &Run) {
    let task = &run.task;
    map.insert("idempotency-key", encoded(task.id.as_str()));
    map.insert("queue-worker-kind", encoded(task.kind.as_str()));
    map.insert("queue-worker-attempt", HeaderValue::from(run.attempt));
    map.insert("queue-worker-fence", HeaderValue::from(run.fence.0));
    if let Some(parent) = &task.traceparent {
        map.insert("traceparent", encoded(parent));
    }
}

/// Visible ASCII as it is, and everything else percent-encoded byte by byte, the percent sign too:
/// so that two ids never become the same key.
fn encoded(text: &str) -> HeaderValue {
    let mut value = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            value.push(char::from(byte));
        } else {
            value.push('%');
            value.push(char::from(b"0123456789ABCDEF"[usize::from(byte >> 4)]));
            value.push(char::from(b"0123456789ABCDEF"[usize::from(byte & 15)]));
        }
    }
    HeaderValue::try_from(value).expect("visible ASCII is a header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_encoded_without_loss() {
        assert_eq!(encoded("order-17/a"), "order-17/a");
        assert_eq!(encoded("a b%ä\n"), "a%20b%25%C3%A4%0A");
    }

    #[test]
    fn configured_headers_are_checked_without_telling_their_value() {
        let headers = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
        let map = configured(&headers("Content-Type", "application/json")).unwrap();
        assert_eq!(map[CONTENT_TYPE], "application/json");
        let error = configured(&headers("x-token", "s3cret\n")).unwrap_err().to_string();
        assert!(error.contains("x-token") && !error.contains("s3cret"), "{error}");
    }
}
