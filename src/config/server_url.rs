//! The URL of a server, whose password nothing shows.
//!
//! Parsing checks the form; which schemes a key takes is a rule of `validate`. No error repeats
//! the text, since a URL that does not parse may still hold a password.

use std::fmt;

use toml::Value;
use url::{Position, Url};

use super::leaf::{Leaf, Refusal};
use super::secret::Secret;
use crate::domain::{SentinelUrl, percent_decode};

/// The query parameters by which clients take a password: Postgres', and Redis' for sockets.
const PASSWORD_PARAMETERS: [&str; 2] = ["password", "pass"];

fn is_password(name: &str) -> bool {
    PASSWORD_PARAMETERS.contains(&name)
}

const HIDDEN: &str = "***";

/// A URL; `Debug` and `Display` hide the password, be it before the host or a parameter.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl(Url);

impl ServerUrl {
    /// Reads a URL that has a scheme. A list of Sentinels counts as its host.
    pub fn parse(text: &str) -> Result<Self, url::ParseError> {
        Url::parse(&SentinelUrl::with_one_host(text)).map(Self)
    }

    /// The whole URL, password included, for the one call that needs it.
    pub fn expose(&self) -> &Url {
        &self.0
    }

    /// What comes before the first colon.
    pub fn scheme(&self) -> &str {
        self.0.scheme()
    }

    /// The user name, percent-decoded: before the host, or the parameter `user`.
    pub fn username(&self) -> Option<String> {
        let raw = self.0.username();
        let parameter = || {
            let mut pairs = self.0.query_pairs();
            pairs.find(|(name, _)| name == "user").map(|(_, text)| text.into_owned())
        };
        if raw.is_empty() { parameter() } else { Some(percent_decode(raw)) }
    }

    /// Whether it names a host.
    pub fn has_host(&self) -> bool {
        self.0.host_str().is_some_and(|host| !host.is_empty())
    }

    /// Whether it leads to this machine, as far as its text tells: a socket, or a loopback address.
    pub fn is_local(&self) -> bool {
        let socket =
            self.0.query_pairs().any(|(name, text)| name == "host" && text.starts_with('/'));
        let host = self.0.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let loopback = || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        socket || host.is_empty() || host == "localhost" || loopback()
    }

    /// Whether both lead to the same server, as far as their text tells: the same host and port, or
    /// the same socket, whatever the user and the database; for Sentinels, the same name too.
    pub fn is_same_server(&self, other: &Self, default_port: u16) -> bool {
        let place = |url: &Url| {
            let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
            let path = if host.is_empty() {
                url.path()
            } else if SentinelUrl::is_scheme(url.scheme()) {
                url.path().split('/').nth(1).unwrap_or_default()
            } else {
                ""
            }
            .to_owned();
            (host, url.port().unwrap_or(default_port), path)
        };
        place(&self.0) == place(&other.0)
    }

    /// The password, percent-decoded: before the host, or the parameter `password` or `pass`.
    pub fn password(&self) -> Option<Secret> {
        let parameter = || {
            let mut pairs = self.0.query_pairs();
            pairs.find(|(name, _)| is_password(name)).map(|(_, text)| text.into_owned())
        };
        let text = self.0.password().map(percent_decode).or_else(parameter);
        text.filter(|text| !text.is_empty()).map(Secret::new)
    }

    /// The same URL without any password, which is how it may be shown and compared.
    #[must_use]
    pub fn without_password(&self) -> String {
        text_of(&self.with_passwords_replaced(None))
    }

    fn with_passwords_replaced(&self, replacement: Option<&str>) -> Url {
        let mut url = self.0.clone();
        if url.password().is_some() {
            // Fails only on a URL that cannot have a password, and this one has.
            let _ = url.set_password(replacement);
        }
        if url.query_pairs().any(|(name, _)| is_password(&name)) {
            let kept: Vec<(String, String)> = self
                .0
                .query_pairs()
                .filter(|(name, _)| !is_password(name))
                .map(|(name, text)| (name.into_owned(), text.into_owned()))
                .collect();
            url.set_query(None);
            if !kept.is_empty() || replacement.is_some() {
                let mut pairs = url.query_pairs_mut();
                pairs.extend_pairs(kept);
                if let Some(text) = replacement {
                    pairs.append_pair(PASSWORD_PARAMETERS[0], text);
                }
            }
        }
        url
    }
}

/// The text of a URL; the list of Sentinels as it was written.
fn text_of(url: &Url) -> String {
    match url.host_str() {
        Some(hosts) if SentinelUrl::is_scheme(url.scheme()) => {
            let hosts = percent_decode(hosts);
            format!("{}{hosts}{}", &url[..Position::BeforeHost], &url[Position::AfterHost..])
        }
        Some(_) | None => url.as_str().to_owned(),
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text_of(&self.with_passwords_replaced(Some(HIDDEN))))
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Leaf for ServerUrl {
    const KIND: &'static str = "a URL";
    const EXAMPLE: &'static str = "\"scheme://host:port/path\"";

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        let remedy = "write it like \"scheme://host:port/path\"; in a user or password, write the \
                      characters # / ? : @ % percent-encoded, or use password_file";
        let Some(text) = value.as_str() else {
            return Err(Refusal::new("is not a URL", remedy));
        };
        Self::parse(text).map_err(|error| Refusal::new(format!("is not a URL: {error}"), remedy))
    }

    fn from_env(text: &str) -> Result<Self, Refusal> {
        Self::from_value(&Value::String(text.to_owned()))
    }

    fn to_value(&self) -> Option<Value> {
        Some(Value::String(self.to_string()))
    }
}

impl Leaf for Vec<ServerUrl> {
    const KIND: &'static str = "a list of URLs";
    const EXAMPLE: &'static str = r#"["scheme://one:port", "scheme://two:port"]"#;

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        let Some(items) = value.as_array() else {
            let remedy = format!("write it like {}", Self::EXAMPLE);
            return Err(Refusal::new("is not a list of URLs", remedy));
        };
        items.iter().map(ServerUrl::from_value).collect()
    }

    fn to_value(&self) -> Option<Value> {
        Some(Value::Array(self.iter().filter_map(Leaf::to_value).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_decoded_and_hidden() {
        let url = ServerUrl::parse("redis://me:p%23%2F%2B%3D%40%25w@host:1/0").expect("a URL");
        assert_eq!(url.password(), Some(Secret::new("p#/+=@%w")));
        assert_eq!(format!("{url} {url:?}"), "redis://me:***@host:1/0 redis://me:***@host:1/0");
        assert_eq!(url.without_password().as_str(), "redis://me@host:1/0");
        assert_eq!(url.username().as_deref(), Some("me"));
    }

    #[test]
    fn a_password_parameter_counts_too() {
        let url = ServerUrl::parse("postgres://me@h/db?host=/run/pg&password=hunter").expect("URL");
        assert_eq!(url.password(), Some(Secret::new("hunter")));
        assert!(!url.to_string().contains("hunter"));
        assert_eq!(url.without_password().as_str(), "postgres://me@h/db?host=%2Frun%2Fpg");
        let url = ServerUrl::parse("redis+unix:///run/r?db=1&user=me&pass=hunter").expect("URL");
        assert_eq!((url.username().as_deref(), url.has_host()), (Some("me"), false));
        assert_eq!(url.password(), Some(Secret::new("hunter")));
        assert!(!format!("{url:?}").contains("hunter"));
        let url = ServerUrl::parse("postgres://h/db?password=hunter").expect("URL");
        assert_eq!(url.without_password().as_str(), "postgres://h/db");
    }

    #[test]
    fn the_same_server_has_many_names() {
        let same = |one: &str, other: &str| {
            let url = |text| ServerUrl::parse(text).expect("a URL");
            url(one).is_same_server(&url(other), 6379)
        };
        assert!(same("redis://a:x@h/0", "rediss://H:6379/1"));
        assert!(same("redis+unix:///run/r?db=1", "unix:///run/r"));
        assert!(!same("redis://h", "redis://h:6380"));
        assert!(!same("redis+unix:///run/r", "redis+unix:///run/s"));
        assert!(same("redis+sentinel://a:1,b:2/one", "redis+sentinel://a:1,b:2/one/3"));
        assert!(!same("redis+sentinel://a:1,b:2/one", "redis+sentinel://a:1,b:2/two"));
    }

    #[test]
    fn a_list_of_sentinels_is_shown_as_it_was_written() {
        let url = ServerUrl::parse("redis+sentinel://me:hunter@a:1,[::1]:2,c/main/1").expect("URL");
        assert_eq!(url.to_string(), "redis+sentinel://me:***@a:1,[::1]:2,c/main/1");
        assert_eq!(url.without_password(), "redis+sentinel://me@a:1,[::1]:2,c/main/1");
        assert_eq!((url.username().as_deref(), url.has_host()), (Some("me"), true));
    }

    #[test]
    fn a_socket_and_a_loopback_address_are_local() {
        for url in [
            "redis+unix:///run/redis.sock",
            "redis://localhost:1/",
            "redis://127.0.0.2/",
            "redis://[::1]:6379/0",
            "postgres://me@db.example/x?host=/run/postgresql",
        ] {
            assert!(ServerUrl::parse(url).expect("a URL").is_local(), "{url}");
        }
        for url in ["redis://10.0.0.1/", "postgres://me@db.example/x?host=db.example"] {
            assert!(!ServerUrl::parse(url).expect("a URL").is_local(), "{url}");
        }
    }
}
