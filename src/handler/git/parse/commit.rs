//! Reads a commit object.
//!
//! Only what git itself needs is needed here: a `tree` line, and `parent` lines directly after it.
//! Everything else may be missing, doubled or garbled, and is then said to be malformed.

use super::ident::identity;
use super::text::{Charset, Decoded};
use super::trailers::trailers;
use crate::handler::git::analysis::{ExtraHeader, Message, SignatureKind, Trailer};
use crate::handler::git::flags::Flags;
use crate::handler::git::identity::Identity;
use crate::handler::git::oid::{ObjectFormat, ObjectId};

/// Unusual headers that are kept.
const MAX_EXTRA: usize = 32;
/// Bytes of an unusual header's value that are kept.
const MAX_EXTRA_VALUE: usize = 4096;
/// Parents that are kept; git itself writes up to some tens.
const MAX_PARENTS: usize = 10_000;

/// A commit object, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::handler::git) struct CommitObject {
    pub(in crate::handler::git) tree: ObjectId,
    pub(in crate::handler::git) parents: Vec<ObjectId>,
    pub(in crate::handler::git) author: Identity,
    pub(in crate::handler::git) committer: Identity,
    pub(in crate::handler::git) encoding: Option<String>,
    pub(in crate::handler::git) message: Message,
    pub(in crate::handler::git) signature: SignatureKind,
    pub(in crate::handler::git) has_mergetag: bool,
    pub(in crate::handler::git) extra_headers: Vec<ExtraHeader>,
    pub(in crate::handler::git) trailers: Vec<Trailer>,
    pub(in crate::handler::git) flags: Flags,
}

/// Reads an object, `size` bytes long, of which `raw` is all or the beginning; `None` if git would
/// not take it for a commit.
pub(in crate::handler::git) fn commit(
    raw: &[u8],
    size: u64,
    format: ObjectFormat,
) -> Option<CommitObject> {
    let (tree, parents, rest) = tree_and_parents(raw, format)?;
    let (headers, message) = split(rest);
    let first = |name: &[u8]| headers.iter().find(|(key, _)| *key == name).map(|(_, v)| &**v);
    let encoding = first(b"encoding");
    let charset = Charset::of(encoding);
    let mut flags = Flags::empty();
    let mut exact = true;
    let mut person = |name| {
        let (person, is_exact) = identity(first(name).unwrap_or_default(), charset);
        exact &= is_exact;
        flags.set_if(!person.when.is_valid(), Flags::DATE_INVALID);
        flags.set_if(!person.well_formed, Flags::IDENT_INVALID);
        person
    };
    let (author, committer) = (person(b"author"), person(b"committer"));
    let twice = |name| headers.iter().filter(|(key, _)| *key == name).count() > 1;
    flags.set_if(twice(b"author".as_slice()) || twice(b"committer"), Flags::MALFORMED);
    flags.set_if(message.contains(&0), Flags::NUL_IN_MESSAGE);
    let missing = size.saturating_sub(u64::try_from(raw.len()).unwrap_or(u64::MAX));
    flags.set_if(missing > 0, Flags::MESSAGE_CUT);
    let decoded = charset.decode(message);
    let found = if missing == 0 { trailers(&decoded.text) } else { Vec::new() };
    let (text, cut) = shown(message, &decoded, missing);
    flags.set_if(cut, Flags::MESSAGE_CUT);
    let (extra_headers, extra_cut) = extra(&headers, charset);
    flags.set_if(extra_cut, Flags::HEADERS_CUT);
    flags.set_if(!exact || !decoded.exact, Flags::ENCODING_LOSSY);
    Some(CommitObject {
        tree,
        parents,
        author,
        committer,
        encoding: encoding.map(|label| Charset::Latin1.decode(limited(label)).text),
        message: text,
        signature: signature(first(b"gpgsig").or(first(b"gpgsig-sha256"))),
        has_mergetag: first(b"mergetag").is_some(),
        extra_headers,
        trailers: found,
        flags,
    })
}

fn tree_and_parents(raw: &[u8], format: ObjectFormat) -> Option<(ObjectId, Vec<ObjectId>, &[u8])> {
    let (tree, mut rest) = id_line(raw, b"tree ", format)?;
    let mut parents = Vec::new();
    while let Some((parent, after)) = id_line(rest, b"parent ", format) {
        if parents.len() == MAX_PARENTS {
            return None;
        }
        parents.push(parent);
        rest = after;
    }
    Some((tree, parents, rest))
}

fn id_line<'a>(text: &'a [u8], name: &[u8], format: ObjectFormat) -> Option<(ObjectId, &'a [u8])> {
    let (hex, rest) = text.strip_prefix(name)?.split_at_checked(format.bytes() * 2)?;
    Some((ObjectId::from_hex(hex)?, rest.strip_prefix(b"\n")?))
}

/// A header's name and its value, the lines of which are separated by newlines.
type Header<'a> = (&'a [u8], Vec<u8>);

/// The headers, and the message after the first empty line.
fn split(text: &[u8]) -> (Vec<Header<'_>>, &[u8]) {
    let mut headers: Vec<Header<'_>> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = memchr::memchr(b'\n', rest);
        let line = &rest[..end.unwrap_or(rest.len())];
        rest = &rest[end.map_or(rest.len(), |end| end + 1)..];
        if line.is_empty() {
            return (headers, rest);
        }
        if let (Some(more), Some((_, value))) = (line.strip_prefix(b" "), headers.last_mut()) {
            value.push(b'\n');
            value.extend_from_slice(more);
            continue;
        }
        let blank = memchr::memchr(b' ', line).unwrap_or(line.len());
        let value = line.get(blank + 1..).unwrap_or_default();
        headers.push((&line[..blank], value.to_vec()));
    }
    (headers, rest)
}

fn signature(header: Option<&[u8]>) -> SignatureKind {
    let Some(armour) = header else { return SignatureKind::None };
    let begins = |with: &str| armour.trim_ascii_start().starts_with(with.as_bytes());
    if begins("-----BEGIN PGP SIGNATURE-----") || begins("-----BEGIN PGP MESSAGE-----") {
        SignatureKind::Pgp
    } else if begins("-----BEGIN SSH SIGNATURE-----") {
        SignatureKind::Ssh
    } else if begins("-----BEGIN SIGNED MESSAGE-----") {
        SignatureKind::X509
    } else {
        SignatureKind::Other
    }
}

/// The headers that are none of git's usual ones, and whether some were left out or cut.
fn extra(headers: &[Header<'_>], charset: Charset) -> (Vec<ExtraHeader>, bool) {
    let usual = |key: &[u8]| {
        matches!(
            key,
            b"author" | b"committer" | b"encoding" | b"gpgsig" | b"gpgsig-sha256" | b"mergetag"
        )
    };
    let unusual: Vec<_> = headers.iter().filter(|(key, _)| !usual(key)).collect();
    let is_long = |(key, value): &&Header<'_>| key.len().max(value.len()) > MAX_EXTRA_VALUE;
    let cut = unusual.len() > MAX_EXTRA || unusual.iter().any(is_long);
    let shown = |bytes| charset.decode(limited(bytes)).text;
    let kept = unusual
        .into_iter()
        .take(MAX_EXTRA)
        .map(|(key, value)| ExtraHeader { key: shown(key), value: shown(value) })
        .collect();
    (kept, cut)
}

fn limited(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(MAX_EXTRA_VALUE)]
}

/// Subject and body, and whether one of them was cut. The subject is the first paragraph in one line,
/// as `%s` shows it; the body what follows, as `%b` does.
fn shown(raw: &[u8], decoded: &Decoded, missing: u64) -> (Message, bool) {
    let is_blank = |line: &str| line.trim_ascii().is_empty();
    let mut lines = decoded.text.split_inclusive('\n').skip_while(|line| is_blank(line)).peekable();
    let mut subject = String::new();
    while let Some(line) = lines.next_if(|line| !is_blank(line)) {
        if !subject.is_empty() {
            subject.push(' ');
        }
        subject.push_str(line.trim_ascii_end());
    }
    let mut body: String = lines.skip_while(|line| is_blank(line)).collect();
    body.truncate(body.trim_ascii_end().len());
    let cut_subject = cut(&mut subject);
    let cut_body = cut(&mut body);
    let bytes = u64::try_from(raw.len()).unwrap_or(u64::MAX).saturating_add(missing);
    let kept = (!decoded.exact).then(|| raw[..raw.len().min(Message::MAX_BODY)].to_vec());
    (Message { subject, body, bytes, raw: kept }, cut_subject || cut_body)
}

fn cut(text: &mut String) -> bool {
    let too_long = text.len() > Message::MAX_BODY;
    if too_long {
        let end = (0..=Message::MAX_BODY).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
    too_long
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TREE: &str = "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\n";
    const PARENT: &str = "parent 1111111111111111111111111111111111111111\n";
    const PEOPLE: &str = "author A <a@x> 1 +0000\ncommitter C <c@x> 2 +0000\n";

    fn read(raw: &[u8]) -> Option<CommitObject> {
        commit(raw, raw.len() as u64, ObjectFormat::Sha1)
    }

    fn with(headers: &str, message: &str) -> CommitObject {
        read(format!("{TREE}{PARENT}{PARENT}{PEOPLE}{headers}\n{message}").as_bytes()).unwrap()
    }

    #[test]
    fn a_usual_commit() {
        let it = with("", "one\ntwo\n\n\nbody\n\nFixes: 1\n");
        assert_eq!(it.parents.len(), 2, "a duplicate stays");
        assert_eq!((&*it.author.name, &*it.committer.email), ("A", "c@x"));
        assert_eq!((&*it.message.subject, &*it.message.body), ("one two", "body\n\nFixes: 1"));
        assert_eq!((it.message.bytes, it.message.raw), (25, None));
        assert_eq!(it.trailers.len(), 1);
        assert_eq!(it.flags, Flags::empty());
    }

    #[test]
    fn headers_of_many_lines() {
        let it = with(
            "gpgsig -----BEGIN SSH SIGNATURE-----\n U1NI\n -----END SSH SIGNATURE-----\nmergetag object 1\n x\nHG:extra a\n b\nencoding ISO-8859-1\n",
            "x",
        );
        assert_eq!((it.signature, it.has_mergetag), (SignatureKind::Ssh, true));
        let expected = ExtraHeader { key: "HG:extra".to_owned(), value: "a\nb".to_owned() };
        assert_eq!(
            (it.extra_headers, it.encoding.as_deref()),
            (vec![expected], Some("ISO-8859-1"))
        );
        for (armour, kind) in [
            ("-----BEGIN PGP SIGNATURE-----", SignatureKind::Pgp),
            ("-----BEGIN SIGNED MESSAGE-----", SignatureKind::X509),
            ("x", SignatureKind::Other),
        ] {
            assert_eq!(with(&format!("gpgsig {armour}\n"), "").signature, kind);
        }
    }

    #[test]
    fn bytes_that_are_no_text() {
        let raw = [TREE.as_bytes(), PEOPLE.as_bytes(), b"\n\xe9\0x\n"].concat();
        let it = read(&raw).unwrap();
        assert_eq!(it.message.subject, "é\u{2400}x");
        assert_eq!(it.message.raw.as_deref(), Some(b"\xe9\0x\n".as_slice()));
        assert!(it.flags.contains(Flags::ENCODING_LOSSY | Flags::NUL_IN_MESSAGE));
    }

    #[test]
    fn what_is_missing_is_said() {
        let it = read(TREE.as_bytes()).unwrap();
        assert!(it.flags.contains(Flags::DATE_INVALID | Flags::IDENT_INVALID));
        assert_eq!((it.message.bytes, it.parents.len()), (0, 0));
        assert_eq!(read(b""), None);
        assert_eq!(read(b"tree 4b825dc6\n"), None);
        assert_eq!(read(&TREE.as_bytes()[..TREE.len() - 1]), None);
        let late = format!("{TREE}{PEOPLE}{PARENT}\n");
        assert!(read(late.as_bytes()).unwrap().parents.is_empty(), "git reads no late parents");
    }

    #[test]
    fn long_messages_are_cut() {
        let body = "é".repeat(Message::MAX_BODY);
        let it = with("", &format!("s\n\n{body}\n"));
        assert_eq!(it.message.body.len(), Message::MAX_BODY);
        assert!(it.flags.contains(Flags::MESSAGE_CUT));
        assert_eq!(it.message.bytes, body.len() as u64 + 4);
        let raw = format!("{TREE}{PEOPLE}\nbegin");
        let it = commit(raw.as_bytes(), raw.len() as u64 + 100, ObjectFormat::Sha1).unwrap();
        assert_eq!((it.message.bytes, it.flags), (105, Flags::MESSAGE_CUT));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(rest in proptest::collection::vec(any::<u8>(), 0..300)) {
            read(&rest);
            read(&[TREE.as_bytes(), &rest].concat());
            read(&[TREE.as_bytes(), PEOPLE.as_bytes(), &rest].concat());
        }

        #[test]
        fn any_lines_are_taken(lines in "((parent|author|gpgsig|encoding|x|) ?[a-z0-9<>+ -]{0,20}\n){0,12}") {
            read(format!("{TREE}{lines}").as_bytes());
        }
    }
}
