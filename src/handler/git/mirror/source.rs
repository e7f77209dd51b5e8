//! Where a repository comes from: a name and a URL, checked against what is allowed.

use std::fmt;
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::location::Location;
use crate::handler::git::oid::hex;
use crate::handler::git::options::SourcePolicy;
use crate::handler::git::outcome::{Outcome, Refusal};

/// Bytes of the longest name.
const MAX_NAME: usize = 255;
/// Characters of the name that a mirror's directory shows.
pub(super) const MAX_SHOWN: usize = 40;

/// A repository and where it is to be had.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Source {
    name: String,
    location: Location,
}

/// Why a source is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidSource {
    /// The name is empty, too long, or holds control characters.
    #[error("the repository's name is empty, longer than 255 bytes, or has control characters")]
    Name,
    /// The URL has no form that is accepted.
    #[error(
        "the URL has none of the forms https://host/path, ssh://user@host/path, user@host:path, \
         file:///path"
    )]
    Form,
    /// The URL holds a password, or a user name where that may be a token.
    #[error(
        "the URL holds a user name or a password; for http and https give both in a file of \
         credential_files, for ssh only the user name in the URL"
    )]
    Credentials,
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
        let location = Location::read(url)?;
        if !policy.protocols.contains(&location.protocol) {
            return Err(InvalidSource::Protocol(location.protocol));
        }
        if let Some(host) = location.host().filter(|host| !allows(policy, host)) {
            return Err(InvalidSource::Host(host.to_owned()));
        }
        Ok(Self { name: name.to_owned(), location })
    }

    /// The repository's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL as git is given it; it never holds a password.
    pub fn url(&self) -> &str {
        &self.location.url
    }

    /// Git's name of the transport: `https`, `ssh`, `file`.
    pub fn protocol(&self) -> &str {
        &self.location.protocol
    }

    /// The host in lower case, unless it is this one's disk.
    pub fn host(&self) -> Option<&str> {
        self.location.host()
    }

    /// What a secret for this source is bound to: `scheme://host[:port]`, without the path.
    pub(super) fn origin(&self) -> Option<String> {
        self.location.origin()
    }

    /// The repository's path as git opens it, if it is on this disk.
    pub(super) fn path(&self) -> Option<PathBuf> {
        self.location.path()
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
            Sha256::new().chain_update(&self.name).chain_update([0]).chain_update(self.url());
        let digest = digest.finalize();
        let hex = hex(&digest[..12]);
        format!("{}-{hex}", shown.trim_matches('-'))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.name).field(&self.location.url).finish()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> SourcePolicy {
        let protocols = ["https", "http", "ssh", "git", "file"].map(str::to_owned).into();
        SourcePolicy { protocols, ..SourcePolicy::default() }
    }

    fn read(url: &str, policy: &SourcePolicy) -> Result<(String, Option<String>), InvalidSource> {
        Source::new("r", url, policy).map(|s| (s.url().to_owned(), s.host().map(str::to_owned)))
    }

    /// Whom the `url` crate, git, curl and ssh take for the host differs in each of these.
    #[test]
    fn no_other_host_hides_behind_an_allowed_one() {
        let hosts = Some(vec!["good".to_owned()]);
        let policy = SourcePolicy { hosts, ..any() };
        for scheme in ["https", "http", "ssh", "git"] {
            for odd in
                ["\\", "?", "#", "%2f", "%5c", "%40", "%", "\t", "\n", "\0", " ", "\u{2044}", ";"]
            {
                for place in
                    [format!("good{odd}@bad"), format!("good{odd}bad"), format!("bad{odd}@good")]
                {
                    let url = format!("{scheme}://{place}/x");
                    assert!(read(&url, &policy).is_err(), "{url:?}");
                }
            }
            for place in
                ["good@bad", "good:@bad", "good:1@bad", "a@good@bad", "bad@good@good", "@bad"]
            {
                assert!(read(&format!("{scheme}://{place}/x"), &policy).is_err(), "{place}");
            }
            assert!(read(&format!("{scheme}://@good/x"), &policy).is_err());
            assert!(read(&format!("{scheme}://good/@bad"), &policy).is_ok());
        }
        for url in
            ["good\\@bad:x", "good?@bad:x", "good@bad:x", "bad/good:x", "@good:x", "good#@bad:x"]
        {
            assert!(read(url, &policy).is_err(), "{url}");
        }
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
        assert_eq!(Source::new("a\nb", "https://a/b", &any()).err(), Some(InvalidSource::Name));
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
