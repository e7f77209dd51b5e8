//! What a dead letter keeps of an entry that was refused: all of it, up to a bound.
//!
//! Burying must always succeed, or the entry would come again for ever. So what passes the bound is
//! cut off the largest value, and its true length and SHA-256 are told; names and the other values
//! stay as they are. Only where these alone pass the bound, the entry is cut where the bound is.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::domain::RawEntry;

/// The most bytes of a refused entry that are kept: a second's work for a slow Postgres.
pub(super) const MAX_BYTES: usize = 8 * 1024 * 1024;
/// The most names and values that are kept.
const MAX_PARTS: usize = 20_000;
/// The most of a name that is told.
const MAX_NAME: usize = 64;

/// What is kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Names and values in turn.
    pub(super) fields: Vec<Bytes>,
    /// What was cut off, if anything was.
    pub(super) cut: Option<String>,
}

impl Kept {
    /// What is kept of an entry. A digest of what is large is made on another thread.
    pub(super) async fn of(raw: &RawEntry) -> Self {
        let fields: Vec<Bytes> =
            raw.fields.iter().flat_map(|(name, value)| [name.clone(), value.clone()]).collect();
        if raw.bytes() <= MAX_BYTES && fields.len() <= MAX_PARTS {
            return Self { fields, cut: None };
        }
        let largest = (0..fields.len()).skip(1).step_by(2).max_by_key(|at| fields[*at].len());
        let rest = largest.map_or(usize::MAX, |at| raw.bytes() - fields[at].len());
        let work = move || match largest {
            Some(at) if rest <= MAX_BYTES && fields.len() <= MAX_PARTS => {
                cut_value(fields, at, MAX_BYTES - rest)
            }
            Some(_) | None => cut_entry(fields),
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(kept) => kept,
            // Only while the runtime ends: the entry will be buried by another worker.
            Err(_) => Self { fields: Vec::new(), cut: Some("nothing of it was kept".to_owned()) },
        }
    }
}

fn cut_value(mut fields: Vec<Bytes>, at: usize, room: usize) -> Kept {
    let (whole, name) = (fields[at].clone(), &fields[at - 1]);
    let cut = format!(
        "kept are the first {room} of the {} bytes of {:?}, which have the SHA-256 {}",
        whole.len(),
        String::from_utf8_lossy(&name[..name.len().min(MAX_NAME)]),
        hexadecimal(&Sha256::digest(&whole)),
    );
    fields[at] = whole.slice(..room);
    Kept { fields, cut: Some(cut) }
}

fn cut_entry(fields: Vec<Bytes>) -> Kept {
    let mut digest = Sha256::new();
    let (mut room, mut total) = (MAX_BYTES, 0);
    let mut kept = Vec::new();
    let count = fields.len();
    for part in fields {
        digest.update(&part);
        total += part.len();
        if kept.len() < MAX_PARTS && room > 0 {
            kept.push(part.slice(..part.len().min(room)));
            room -= part.len().min(room);
        }
    }
    // Names and values come in pairs.
    kept.truncate(kept.len() / 2 * 2);
    let cut = format!(
        "kept is the beginning of its {} fields; all names and values, one behind the other, are \
         {total} bytes and have the SHA-256 {}",
        count / 2,
        hexadecimal(&digest.finalize()),
    );
    Kept { fields: kept, cut: Some(cut) }
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(fields: Vec<(&'static str, Vec<u8>)>) -> RawEntry {
        let own = |(name, value): (&'static str, Vec<u8>)| (Bytes::from(name), Bytes::from(value));
        RawEntry { fields: fields.into_iter().map(own).collect() }
    }

    #[tokio::test]
    async fn what_fits_is_kept_byte_for_byte() {
        let rest = MAX_BYTES - "task_id".len() - "payload".len() - 1;
        let raw = entry(vec![("task_id", b"t".to_vec()), ("payload", vec![7; rest])]);
        let kept = Kept::of(&raw).await;
        assert_eq!((kept.fields.len(), kept.cut), (4, None));
        assert_eq!(kept.fields[3], vec![7; rest]);
    }

    #[tokio::test]
    async fn the_largest_value_is_cut_and_described() {
        let payload = vec![b'x'; MAX_BYTES];
        let raw = entry(vec![
            ("payload", payload.clone()),
            ("task_id", b"t".to_vec()),
            ("kind", b"k".to_vec()),
        ]);
        let kept = Kept::of(&raw).await;
        assert_eq!(kept.fields.iter().map(Bytes::len).sum::<usize>(), MAX_BYTES);
        assert_eq!((&kept.fields[3][..], &kept.fields[5][..]), (&b"t"[..], &b"k"[..]));
        let cut = kept.cut.expect("it is too large");
        let digest = hexadecimal(&Sha256::digest(&payload));
        assert!(cut.contains("8388608 bytes of \"payload\"") && cut.ends_with(&digest), "{cut}");
    }

    #[tokio::test]
    async fn an_entry_of_many_fields_is_cut_where_the_bound_is() {
        let raw = entry(vec![("f", b"v".to_vec()); MAX_PARTS]);
        let kept = Kept::of(&raw).await;
        assert_eq!(kept.fields.len(), MAX_PARTS);
        let cut = kept.cut.expect("there are too many");
        assert!(cut.contains("its 20000 fields") && cut.contains("are 40000 bytes"), "{cut}");
        let raw = entry(vec![("a", vec![1; MAX_BYTES]), ("b", vec![2; MAX_BYTES])]);
        let kept = Kept::of(&raw).await;
        assert!(kept.fields.iter().map(Bytes::len).sum::<usize>() <= MAX_BYTES);
        assert_eq!(kept.fields.len() % 2, 0);
    }
}
