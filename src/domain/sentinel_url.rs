//! The URL of a Redis that Sentinels watch: where they are, and what they call it.
//!
//! `redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]/NAME[/DATABASE]`, the form of other
//! clients. User and password are those of the Redis itself. No error repeats the text, which may
//! hold a password. A colon in the list may be percent-encoded, since the URL standard knows only
//! one port.

/// The port of a Sentinel whose URL names none.
const SENTINEL_PORT: u16 = 26_379;

/// More of them than anybody runs: all are asked at each connect.
const MAX_SENTINELS: usize = 16;

/// Without and with TLS, to the Sentinels and to the Redis.
const SCHEMES: [(&str, bool); 2] = [("redis+sentinel", false), ("rediss+sentinel", true)];

/// A Redis by the name that its Sentinels know it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelUrl {
    /// The Sentinels: host (an address without its brackets) and port.
    pub sentinels: Vec<(String, u16)>,
    /// What they call the Redis.
    pub name: String,
    /// The database there.
    pub database: u32,
    /// Whether all of them speak TLS.
    pub tls: bool,
    /// The user of the Redis.
    pub username: Option<String>,
    /// Its password, if it is in the URL.
    password: Option<String>,
}

impl SentinelUrl {
    /// Whether a URL of this scheme is one of Sentinels.
    pub fn is_scheme(scheme: &str) -> bool {
        SCHEMES.iter().any(|(known, _)| *known == scheme)
    }

    /// Reads the URL; the error completes "the URL …".
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = text.split_once("://").ok_or("names no host")?;
        let (_, tls) = *SCHEMES
            .iter()
            .find(|(known, _)| *known == scheme)
            .ok_or("has not the scheme redis+sentinel or rediss+sentinel")?;
        if rest.contains(['?', '#']) {
            return Err("has parameters, and none are known");
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (username, password) =
            match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
                Some((username, password)) => (given(username), given(password)),
                None => (None, None),
            };
        let sentinels: Vec<_> =
            percent_decode(hosts).split(',').map(host_and_port).collect::<Result<_, _>>()?;
        if sentinels.len() > MAX_SENTINELS {
            return Err("names more than 16 sentinels");
        }
        let (name, database) = path.split_once('/').unwrap_or((path, ""));
        let name = given(name).ok_or("does not say what the sentinels call the redis")?;
        let database = match database {
            "" => 0,
            number => number.parse().map_err(|_| "has a database that is no number")?,
        };
        Ok(Self { sentinels, name, database, tls, username, password })
    }

    /// The password, if it is in the URL.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// The text with the list of hosts written as one host, which the URL standard can read; other
    /// URLs stay as they are.
    pub fn with_one_host(text: &str) -> String {
        let Some((scheme, rest)) = text.split_once("://").filter(|(s, _)| Self::is_scheme(s))
        else {
            return text.to_owned();
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let start = authority.rfind('@').map_or(0, |at| at + 1);
        let (login, hosts) = authority.split_at(start);
        let hosts = hosts.replace(':', "%3A").replace('[', "%5B").replace(']', "%5D");
        format!("{scheme}://{login}{hosts}{path}")
    }
}

fn given(text: &str) -> Option<String> {
    Some(percent_decode(text)).filter(|text| !text.is_empty())
}

fn host_and_port(text: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, port)) => (address, Some(port.strip_prefix(':').ok_or("has a bad port")?)),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("names a sentinel without a host");
    }
    let port = match port {
        None => SENTINEL_PORT,
        Some(port) => port.parse().map_err(|_| "has a bad port")?,
    };
    Ok((host.to_owned(), port))
}

/// Decodes `%41`; what is no escape stays as it is.
pub fn percent_decode(text: &str) -> String {
    let hex = |byte: Option<&u8>| byte.and_then(|b| char::from(*b).to_digit(16));
    let raw = text.as_bytes();
    let mut decoded = Vec::with_capacity(raw.len());
    let mut at = 0;
    while let Some(&byte) = raw.get(at) {
        let escaped = match (byte, hex(raw.get(at + 1)), hex(raw.get(at + 2))) {
            (b'%', Some(high), Some(low)) => u8::try_from(high * 16 + low).ok(),
            _ => None,
        };
        decoded.push(escaped.unwrap_or(byte));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_are_read() {
        let text = "rediss+sentinel://me:p%40w@a:1,b,[::1]:3,[::2]/main/2";
        for text in [text.to_owned(), SentinelUrl::with_one_host(text)] {
            let url = SentinelUrl::parse(&text).expect(&text);
            let at = |host: &str, port| (host.to_owned(), port);
            assert_eq!(
                url.sentinels,
                [at("a", 1), at("b", 26_379), at("::1", 3), at("::2", 26_379)]
            );
            assert_eq!((url.name.as_str(), url.database, url.tls), ("main", 2, true));
            assert_eq!((url.username.as_deref(), url.password()), (Some("me"), Some("p@w")));
        }
        let url = SentinelUrl::parse("redis+sentinel://a/main").expect("a URL");
        assert_eq!((url.database, url.tls, url.username), (0, false, None));
    }

    #[test]
    fn what_is_missing_is_said_without_repeating_a_password() {
        for text in [
            "redis+sentinel://:hunter2@a:1",
            "redis+sentinel://:hunter2@a:1/",
            "redis+sentinel://:hunter2@a:port/m",
            "redis+sentinel://:hunter2@a:1,/m",
            "redis+sentinel://:hunter2@a:1/m/x",
            "redis+sentinel://:hunter2@a:1/m?timeout=1",
            "redis://:hunter2@a:1/m",
        ] {
            let error = SentinelUrl::parse(text).expect_err(text);
            assert!(!error.contains("hunter2"), "{error}");
        }
        let many = format!("redis+sentinel://{}/m", ["a"; MAX_SENTINELS + 1].join(","));
        assert!(SentinelUrl::parse(&many).is_err());
    }

    #[test]
    fn only_urls_of_sentinels_are_rewritten() {
        assert_eq!(SentinelUrl::with_one_host("redis://a:1/0"), "redis://a:1/0");
        assert_eq!(
            SentinelUrl::with_one_host("redis+sentinel://u:p@a:1,b:2/m"),
            "redis+sentinel://u:p@a%3A1,b%3A2/m"
        );
    }
}
