//! What the URL of a repository names: a server's host, or a path on this disk.
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
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use url::Url;

use super::source::InvalidSource;

/// Bytes of the longest URL.
const MAX_URL: usize = 2048;

/// What a URL names.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Location {
    /// As git is given it; it never holds a password.
    pub(super) url: String,
    /// Git's name of the transport.
    pub(super) protocol: String,
    server: Option<Server>,
}

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Server {
    /// In lower case.
    host: String,
    /// If the URL names one.
    port: Option<u16>,
}

impl Location {
    /// Reads a URL, or refuses it.
    pub(super) fn read(url: &str) -> Result<Self, InvalidSource> {
        if url.len() > MAX_URL {
            return Err(InvalidSource::Form);
        }
        if let Some(path) = url.strip_prefix("file://").or(url.starts_with('/').then_some(url)) {
            // A local path may hold blanks, but no line ends.
            if !path.starts_with('/') || url.chars().any(char::is_control) {
                return Err(InvalidSource::Form);
            }
            // Git decodes a URL, and a plain path may hold a percent sign.
            let path =
                if url.starts_with('/') { path.replace('%', "%25") } else { path.to_owned() };
            return Ok(Self {
                url: format!("file://{path}"),
                protocol: "file".to_owned(),
                server: None,
            });
        }
        if url.starts_with('-') || url.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(InvalidSource::Form);
        }
        match url.split_once("://") {
            Some((scheme, rest)) => with_scheme(url, scheme, rest),
            None => scp_like(url),
        }
    }

    /// The server's host in lower case.
    pub(super) fn host(&self) -> Option<&str> {
        self.server.as_ref().map(|server| server.host.as_str())
    }

    /// `scheme://host[:port]`.
    pub(super) fn origin(&self) -> Option<String> {
        let Server { host, port } = self.server.as_ref()?;
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        Some(format!("{}://{host}{port}", self.protocol))
    }

    /// The path on this disk, as git opens it.
    pub(super) fn path(&self) -> Option<PathBuf> {
        let path = self.url.strip_prefix("file://")?;
        Some(OsString::from_vec(percent_decoded(path.as_bytes())).into())
    }
}

/// `scheme://[user@]host[:port]/path`.
fn with_scheme(url: &str, scheme: &str, rest: &str) -> Result<Location, InvalidSource> {
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
        Ok(Location { url: url.to_owned(), protocol: scheme.to_owned(), server: Some(server) })
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
fn scp_like(url: &str) -> Result<Location, InvalidSource> {
    let (place, path) = url.split_once(':').ok_or(InvalidSource::Form)?;
    let (user, host) = place.rsplit_once('@').unwrap_or(("", place));
    let host = host.to_ascii_lowercase();
    // A path that begins with a colon would make it a remote helper's address.
    let fits = is_host(&host)
        && (is_user(user) || !place.contains('@'))
        && !path.is_empty()
        && !path.starts_with([':', '-']);
    if !fits {
        return Err(InvalidSource::Form);
    }
    let server = Some(Server { host, port: None });
    Ok(Location { url: url.to_owned(), protocol: "ssh".to_owned(), server })
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

    fn refused(url: &str) -> Option<InvalidSource> {
        Location::read(url).err()
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
            let read = Location::read(url).map(|it| (it.url.clone(), it.host().map(str::to_owned)));
            assert_eq!(read, Ok((git.to_owned(), host)), "{url}");
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
            assert_eq!(refused(url), Some(InvalidSource::Form), "{url}");
        }
        let secrets = ["https://u:p@a/b", "https://token@a/b", "http://token@a:1/b", "git://u@a/b"];
        for url in secrets.into_iter().chain(["ssh://u:p@a/b"]) {
            assert_eq!(refused(url), Some(InvalidSource::Credentials), "{url}");
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
            let Ok(found) = Location::read(&url) else { return Ok(()) };
            prop_assert!(!url.starts_with('-'));
            let Some(host) = found.host() else {
                prop_assert!(found.url.starts_with("file:///"));
                return Ok(());
            };
            let (authority, is_scp) = match url.split_once("://") {
                Some((_, rest)) => (rest.split_once('/').unwrap().0, false),
                None => (url.split_once(':').unwrap().0, true),
            };
            let (user, place) = authority.split_once('@').unwrap_or(("u", authority));
            prop_assert!(user.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)));
            prop_assert!(!authority.contains('@') || found.protocol == "ssh");
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
        let read = |url| Location::read(url).unwrap();
        for (url, path) in [
            ("/srv/a%20b", "/srv/a%20b"),
            ("file:///srv/a%20b%2", "/srv/a b%2"),
            ("file:///srv/%zz%00%+1", "/srv/%zz%00%+1"),
        ] {
            assert_eq!(read(url).path(), Some(path.into()), "{url}");
        }
        for (url, origin) in [
            ("https://A.b:8443/x", Some("https://a.b:8443")),
            ("http://a/x", Some("http://a")),
            ("git@a:x", Some("ssh://a")),
            ("/srv/x", None),
        ] {
            assert_eq!(read(url).origin().as_deref(), origin, "{url}");
        }
    }
}
