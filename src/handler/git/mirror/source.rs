//! Where a repository comes from: a name and a URL, checked against what is allowed.
//!
//! Git understands many more forms than are accepted here. What is not one of these is refused, so
//! that nothing that a task says is taken for an option, a command or a helper's name:
//! `scheme://host[:port]/path`, `ssh://[user@]host[:port]/path`, `user@host:path`, `file:///path` and
//! an absolute path.
//!
//! Programs disagree about whose host an odd URL names. So nothing odd may stand before the path, and
//! where the `url` crate reads something else than what stands there, the URL is refused: the host that
//! is judged is the one that git talks to.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

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
const MAX_SHOWN: usize = 40;

/// A repository and where it is to be had.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Source {
    name: String,
    url: String,
    protocol: String,
    server: Option<Server>,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Server {
    /// In lower case.
    host: String,
    /// If the URL names one.
    port: Option<u16>,
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
        let (url, protocol, server) = read(url)?;
        if !policy.protocols.contains(&protocol) {
            return Err(InvalidSource::Protocol(protocol));
        }
        if let Some(server) = server.as_ref().filter(|server| !allows(policy, &server.host)) {
            return Err(InvalidSource::Host(server.host.clone()));
        }
        Ok(Self { name: name.to_owned(), url, protocol, server })
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
        self.server.as_ref().map(|server| server.host.as_str())
    }

    /// What a secret for this source is bound to: `scheme://host[:port]`, without the path.
    pub(super) fn origin(&self) -> Option<String> {
        let Server { host, port } = self.server.as_ref()?;
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        Some(format!("{}://{host}{port}", self.protocol))
    }

    /// The repository's path as git opens it, if it is on this disk.
    pub(super) fn path(&self) -> Option<PathBuf> {
        let path = self.url.strip_prefix("file://")?;
        Some(OsString::from_vec(percent_decoded(path.as_bytes())).into())
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

/// The URL for git, its protocol and its server.
type Read = (String, String, Option<Server>);

fn read(url: &str) -> Result<Read, InvalidSource> {
    if url.len() > MAX_URL {
        return Err(InvalidSource::Form);
    }
    if let Some(path) = url.strip_prefix("file://").or(url.starts_with('/').then_some(url)) {
        // A local path may hold blanks, but no line ends.
        if !path.starts_with('/') || url.chars().any(char::is_control) {
            return Err(InvalidSource::Form);
        }
        // Git decodes a URL, and a plain path may hold a percent sign.
        let path = if url.starts_with('/') { path.replace('%', "%25") } else { path.to_owned() };
        return Ok((format!("file://{path}"), "file".to_owned(), None));
    }
    if url.starts_with('-') || url.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(InvalidSource::Form);
    }
    match url.split_once("://") {
        Some((scheme, rest)) => with_scheme(url, scheme, rest),
        None => scp_like(url),
    }
}

/// `scheme://[user@]host[:port]/path`.
fn with_scheme(url: &str, scheme: &str, rest: &str) -> Result<Read, InvalidSource> {
    let (authority, _) = rest.split_once('/').ok_or(InvalidSource::Form)?;
    let (userinfo, place) = authority.rsplit_once('@').unwrap_or(("", authority));
    if !userinfo.is_empty() && (scheme != "ssh" || userinfo.contains(':')) {
        return Err(InvalidSource::Credentials);
    }
    let (host, port) = match place.rsplit_once(':') {
        // A colon within the brackets is the address's own.
        Some((host, port)) if !port.ends_with(']') => (host, Some(number(port)?)),
        _ => (place, None),
    };
    let server = Server { host: host.to_ascii_lowercase(), port };
    // A remote helper's name is a scheme that git would run as a program.
    let fits = !scheme.is_empty()
        && scheme.chars().all(|c| c.is_ascii_lowercase())
        && is_host(&server.host)
        && (is_user(userinfo) || !authority.contains('@'));
    let agrees = Url::parse(url).is_ok_and(|read| {
        read.scheme() == scheme
            && read.username() == userinfo
            && read.password().is_none()
            && read.host_str().is_some_and(|host| host.eq_ignore_ascii_case(&server.host))
            && read.port().or(port) == port
    });
    if fits && agrees {
        Ok((url.to_owned(), scheme.to_owned(), Some(server)))
    } else {
        Err(InvalidSource::Form)
    }
}

/// A port in digits and nothing else.
fn number(port: &str) -> Result<u16, InvalidSource> {
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|port| digits && *port != 0);
    port.ok_or(InvalidSource::Form)
}

/// `[user@]host:path`, as ssh(1) and scp(1) write it.
fn scp_like(url: &str) -> Result<Read, InvalidSource> {
    let (place, path) = url.split_once(':').ok_or(InvalidSource::Form)?;
    let (user, host) = place.rsplit_once('@').unwrap_or(("", place));
    let host = host.to_ascii_lowercase();
    // A path that begins with a colon would make it a remote helper's address; brackets, which only an
    // address with colons has, are read differently by different versions.
    let fits = is_host(&host)
        && (is_user(user) || !place.contains('@'))
        && !path.is_empty()
        && !path.starts_with([':', '-']);
    if !fits {
        return Err(InvalidSource::Form);
    }
    Ok((url.to_owned(), "ssh".to_owned(), Some(Server { host, port: None })))
}

/// A name to sign in with that is no option of ssh and needs no quotes.
fn is_user(user: &str) -> bool {
    !user.is_empty()
        && !user.starts_with('-')
        && user.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
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

/// As git decodes a URL: a percent sign without two digits stands for itself.
fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let byte = digits.and_then(|digits| {
            let digits = str::from_utf8(digits).ok().filter(|it| !it.starts_with('+'))?;
            u8::from_str_radix(digits, 16).ok().filter(|byte| *byte != 0)
        });
        decoded.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    decoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any() -> SourcePolicy {
        let protocols = ["https", "http", "ssh", "git", "file"].map(str::to_owned).into();
        SourcePolicy { protocols, ..SourcePolicy::default() }
    }

    fn read(url: &str, policy: &SourcePolicy) -> Result<(String, Option<String>), InvalidSource> {
        Source::new("r", url, policy).map(|s| (s.url.clone(), s.host().map(str::to_owned)))
    }

    #[test]
    fn accepts_the_usual_forms() {
        for (url, git, host) in [
            ("https://Example.com/a/b.git", "https://Example.com/a/b.git", Some("example.com")),
            ("ssh://git@example.com:22/a", "ssh://git@example.com:22/a", Some("example.com")),
            ("git@example.com:a/b.git", "git@example.com:a/b.git", Some("example.com")),
            (
                "https://xn--bcher-kva.example/x",
                "https://xn--bcher-kva.example/x",
                Some("xn--bcher-kva.example"),
            ),
            ("https://a/b?c=@d#e\\f%2f", "https://a/b?c=@d#e\\f%2f", Some("a")),
            ("ssh://u.s-e_r@[::1]:22/~/x", "ssh://u.s-e_r@[::1]:22/~/x", Some("[::1]")),
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
            // No path, odd ports, other spellings of an address or a name.
            "https://a",
            "https://a?/b",
            "https://a:/b",
            "https://a:+1/b",
            "https://a:65536/b",
            "https://a:0/b",
            "https://a:1:2/b",
            "https://[::1/b",
            "https://[0:0::1]/b",
            "https://127.1/b",
            "https://0x7f000001/b",
            "https://ä/b",
            "https:///a/b",
            "HTTPS://a/b",
            "git+ssh://a/b",
            "[::1]:b",
        ] {
            assert_eq!(read(url, &any()), Err(InvalidSource::Form), "{url}");
        }
        let secrets = ["https://u:p@a/b", "https://token@a/b", "http://token@a:1/b", "git://u@a/b"];
        for url in secrets.into_iter().chain(["ssh://u:p@a/b"]) {
            assert_eq!(read(url, &any()), Err(InvalidSource::Credentials), "{url}");
        }
        assert_eq!(Source::new("a\nb", "https://a/b", &any()).err(), Some(InvalidSource::Name));
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

    proptest! {
        /// What is accepted has one reading: before the path stand the host, and a user and a port of
        /// the plainest kind, and nothing else.
        #[test]
        fn what_is_accepted_has_one_host(
            scheme in "(https|http|ssh|git|file|ext|HTTPS|x)?",
            middle in "(://|:|::|:/)",
            place in "([a-z0-9@:./?#\\\\%\\[\\]_+ -]|good|bad|@|\\PC){0,12}",
            path in "([/:@a-z?#\\\\%-]){0,6}",
        ) {
            let url = format!("{scheme}{middle}{place}{path}");
            let Ok(source) = Source::new("r", &url, &any()) else { return Ok(()) };
            prop_assert!(!url.starts_with('-'));
            let Some(host) = source.host() else {
                prop_assert!(source.url().starts_with("file:///"));
                return Ok(());
            };
            let (authority, is_scp) = match url.split_once("://") {
                Some((_, rest)) => (rest.split_once('/').unwrap().0, false),
                None => (url.split_once(':').unwrap().0, true),
            };
            let (user, place) = authority.split_once('@').unwrap_or(("u", authority));
            prop_assert!(user.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)));
            prop_assert!(!authority.contains('@') || source.protocol() == "ssh");
            let port = place.to_ascii_lowercase();
            let port = port.strip_prefix(host).unwrap();
            let digits = port.strip_prefix(':').unwrap_or("1");
            prop_assert!(digits.parse::<u16>().is_ok() && !digits.starts_with('+'));
            prop_assert!(port.is_empty() || !is_scp);
            prop_assert!(!host.contains(['@', '/', '\\', '?', '#', '%']) && !host.starts_with('-'));
        }
    }

    #[test]
    fn paths_and_origins_are_what_git_sees() {
        let source = |url| Source::new("r", url, &any()).unwrap();
        for (url, path) in [
            ("/srv/a%20b", "/srv/a%20b"),
            ("file:///srv/a%20b%2", "/srv/a b%2"),
            ("file:///srv/%zz%00%+1", "/srv/%zz%00%+1"),
        ] {
            assert_eq!(source(url).path(), Some(path.into()), "{url}");
        }
        for (url, origin) in [
            ("https://A.b:8443/x", Some("https://a.b:8443")),
            ("http://a/x", Some("http://a")),
            ("git@a:x", Some("ssh://a")),
            ("/srv/x", None),
        ] {
            assert_eq!(source(url).origin().as_deref(), origin, "{url}");
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
