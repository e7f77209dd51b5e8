//! Where a repository comes from: a name and a URL, checked against what is allowed.
//!
//! Git understands many more forms than are accepted here. What is not one of these is refused, so
//! that nothing that a task says is taken for an option, a command or a helper's name:
//! `scheme://[user@]host[:port]/path`, `user@host:path`, `file:///path` and an absolute path.

use std::fmt;

use sha2::{Digest, Sha256};
use thiserror::Error;
use url::Url;

use crate::handler::git::oid::hex;
use crate::handler::git::options::SourcePolicy;
use crate::handler::git::outcome::{Outcome, Refusal};

/// Bytes of the longest URL.
const MAX_URL: usize = 2048;
/// Bytes of the longest name.
const MAX_NAME: usize = 255;
/// Characters of the name that a mirror's directory shows.
pub(super) const MAX_SHOWN: usize = 40;

/// A repository and where it is to be had.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Source {
    name: String,
    url: String,
    protocol: String,
    host: Option<String>,
}

/// Why a source is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidSource {
    /// The name is empty, too long, or holds control characters.
    #[error("the repository's name is empty, longer than 255 bytes, or has control characters")]
    Name,
    /// The URL has no form that is accepted.
    #[error(
        "the URL has none of the forms https://host/path, ssh://host/path, user@host:path, file:///path"
    )]
    Form,
    /// The URL holds a password.
    #[error("the URL holds a password; give it in the credentials file of the host")]
    Password,
    /// The protocol is not allowed.
    #[error("the protocol {0} is not among the allowed ones")]
    Protocol(String),
    /// The host is not allowed.
    #[error("the host {0} is not among the allowed ones")]
    Host(String),
}

impl InvalidSource {
    /// What it means for each commit that was wanted.
    pub fn outcome(&self) -> Outcome {
        Outcome::refused(Refusal::RepoUnreadable, self.to_string())
    }
}

impl Source {
    /// Checks a name and a URL against what the operator allows.
    pub fn new(name: &str, url: &str, policy: &SourcePolicy) -> Result<Self, InvalidSource> {
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return Err(InvalidSource::Name);
        }
        let (url, protocol, host) = read(url)?;
        if !policy.protocols.contains(&protocol) {
            return Err(InvalidSource::Protocol(protocol));
        }
        if let Some(host) = host.as_ref().filter(|host| !allows(policy, host)) {
            return Err(InvalidSource::Host(host.clone()));
        }
        Ok(Self { name: name.to_owned(), url, protocol, host })
    }

    /// The repository's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL as git is given it; it never holds a password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Git's name of the transport: `https`, `ssh`, `file`.
    pub fn protocol(&self) -> &str {
        &self.protocol
    }

    /// The host in lower case, unless it is this one's disk.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The name of the mirror's directory: readable, safe in a path, and different for each pair of
    /// name and URL.
    pub fn key(&self) -> String {
        let shown: String = self
            .name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
            .take(MAX_SHOWN)
            .collect();
        let digest =
            Sha256::new().chain_update(&self.name).chain_update([0]).chain_update(&self.url);
        let digest = digest.finalize();
        let hex = hex(&digest[..12]);
        format!("{}-{hex}", shown.trim_matches('-'))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.name).field(&self.url).finish()
    }
}

fn allows(policy: &SourcePolicy, host: &str) -> bool {
    policy.hosts.as_ref().is_none_or(|hosts| {
        hosts.iter().any(|allowed| {
            let allowed = allowed.to_ascii_lowercase();
            host == allowed || (allowed.starts_with('.') && host.ends_with(&allowed))
        })
    })
}

/// The URL for git, its protocol and its host.
fn read(url: &str) -> Result<(String, String, Option<String>), InvalidSource> {
    let plain = !url.is_empty()
        && url.len() <= MAX_URL
        && !url.starts_with('-')
        && !url.chars().any(|c| c.is_control() || c.is_whitespace());
    if let Some(path) = url.strip_prefix("file://").or(url.starts_with('/').then_some(url)) {
        // A local path may hold blanks, but no line ends.
        let fits =
            path.starts_with('/') && url.len() <= MAX_URL && !url.chars().any(char::is_control);
        // Git decodes a URL, and a plain path may hold a percent sign.
        let path = if url.starts_with('/') { path.replace('%', "%25") } else { path.to_owned() };
        return if fits {
            Ok((format!("file://{path}"), "file".to_owned(), None))
        } else {
            Err(InvalidSource::Form)
        };
    }
    if !plain {
        return Err(InvalidSource::Form);
    }
    if !url.contains("://") {
        return scp_like(url);
    }
    let parsed = Url::parse(url).map_err(|_| InvalidSource::Form)?;
    let host = parsed.host_str().unwrap_or_default().to_ascii_lowercase();
    // A host that begins with a dash would be an option of ssh, and `::` names a remote helper.
    if !is_host(&host) || parsed.scheme().contains(':') || parsed.username().starts_with('-') {
        return Err(InvalidSource::Form);
    }
    if parsed.password().is_some() {
        return Err(InvalidSource::Password);
    }
    Ok((url.to_owned(), parsed.scheme().to_owned(), Some(host)))
}

/// `[user@]host:path`, as ssh(1) and scp(1) write it.
fn scp_like(url: &str) -> Result<(String, String, Option<String>), InvalidSource> {
    let (place, path) = url.split_once(':').ok_or(InvalidSource::Form)?;
    let (user, host) = place.rsplit_once('@').unwrap_or(("", place));
    let host = host.to_ascii_lowercase();
    let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    // A path that begins with a colon would make it a remote helper's address.
    let fits = is_host(&host)
        && plain(user)
        && !user.starts_with('-')
        && !path.is_empty()
        && !path.starts_with([':', '-']);
    if fits { Ok((url.to_owned(), "ssh".to_owned(), Some(host))) } else { Err(InvalidSource::Form) }
}

fn is_host(host: &str) -> bool {
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && !host.starts_with(['-', '.'])
                && host.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> SourcePolicy {
        let protocols = ["https", "http", "ssh", "git", "file"].map(str::to_owned).into();
        SourcePolicy { protocols, ..SourcePolicy::default() }
    }

    fn read(url: &str, policy: &SourcePolicy) -> Result<(String, Option<String>), InvalidSource> {
        Source::new("r", url, policy).map(|s| (s.url, s.host))
    }

    #[test]
    fn accepts_the_usual_forms() {
        for (url, git, host) in [
            ("https://Example.com/a/b.git", "https://Example.com/a/b.git", Some("example.com")),
            ("ssh://git@example.com:22/a", "ssh://git@example.com:22/a", Some("example.com")),
            ("git@example.com:a/b.git", "git@example.com:a/b.git", Some("example.com")),
            ("https://[::1]:8443/x", "https://[::1]:8443/x", Some("[::1]")),
            ("/srv/a b.git", "file:///srv/a b.git", None),
            ("/srv/a%20b", "file:///srv/a%2520b", None),
            ("file:///srv/x%20y", "file:///srv/x%20y", None),
        ] {
            let host = host.map(str::to_owned);
            assert_eq!(read(url, &any()), Ok((git.to_owned(), host)), "{url}");
        }
    }

    #[test]
    fn refuses_what_could_be_something_else() {
        for url in [
            "",
            "--upload-pack=x",
            "-x:y",
            "ext::sh -c id",
            "ext::x",
            "a::b",
            "relative/path",
            "file://host/path",
            "https://",
            "https://-o/x",
            "ssh://-oProxyCommand=x/y",
            "ssh://-x@host/y",
            "git@-host:x",
            "host:-x",
            "https://a/b\nc",
            "https://a/b c",
            "/srv/x\n[core]",
        ] {
            assert_eq!(read(url, &any()), Err(InvalidSource::Form), "{url}");
        }
        assert_eq!(read("https://u:p@a/b", &any()), Err(InvalidSource::Password));
        assert_eq!(Source::new("a\nb", "https://a/b", &any()).err(), Some(InvalidSource::Name));
    }

    #[test]
    fn the_operator_decides() {
        let policy = SourcePolicy {
            hosts: Some(vec!["Example.com".to_owned(), ".internal".to_owned()]),
            ..SourcePolicy::default()
        };
        assert!(read("https://example.com/x", &policy).is_ok());
        assert!(read("git@git.internal:x", &policy).is_ok());
        for url in ["https://evil.com/x", "https://notexample.com/x", "https://internal/x"] {
            assert!(matches!(read(url, &policy), Err(InvalidSource::Host(_))), "{url}");
        }
        let refused = InvalidSource::Protocol("file".to_owned());
        assert_eq!(read("/srv/x", &SourcePolicy::default()), Err(refused));
        assert!(matches!(read("gopher://a/b", &any()), Err(InvalidSource::Protocol(_))));
    }

    #[test]
    fn keys_are_safe_and_different() {
        let key = |name, url| Source::new(name, url, &any()).unwrap().key();
        let plain = key("redis/Redis", "https://a/b");
        assert!(plain.starts_with("redis-redis-"), "{plain}");
        assert_ne!(plain, key("redis/Redis", "https://a/c"));
        assert_ne!(key("../..", "https://a/b"), key("../.", "https://a/b"));
        assert!(!key("../..", "https://a/b").contains(['/', '.']));
    }
}
