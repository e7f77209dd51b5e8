//! Room on the disk: what all mirrors take together, and what must stay free.
//!
//! The mirrors used longest ago go first, each under its own exclusive lock and only if nobody reads
//! it. Their sizes are those noted after the last fetch.

use std::io;
use std::path::Path;

use super::error::MirrorError;
use super::lock::try_lock;
use super::place::Place;
use crate::handler::git::options::MirrorLimits;

/// Makes room for `more` bytes in the mirror at `place`, whose exclusive lock is held. Blocks.
pub(super) fn make_room(
    root: &Path,
    place: &Place,
    more: u64,
    limits: &MirrorLimits,
) -> Result<(), MirrorError> {
    let local = |error: io::Error| MirrorError::Local(format!("{}: {error}", root.display()));
    let mut others: Vec<Place> =
        Place::all(root).map_err(local)?.into_iter().filter(|other| other != place).collect();
    others.sort_by_key(Place::used);
    let mut total: u64 = others.iter().map(Place::size).sum::<u64>() + place.size();
    let mut others = others.into_iter().filter(|other| other.size() > 0);
    loop {
        let free = free(root).map_err(local)?;
        let lacks_total = total.saturating_add(more) > limits.total;
        let lacks_free = free < limits.free.saturating_add(more);
        if !lacks_total && !lacks_free {
            return Ok(());
        }
        let Some(oldest) = others.next() else {
            // Alone it may be as large as a mirror may be.
            if !lacks_free {
                return Ok(());
            }
            let wanted = limits.free.saturating_add(more);
            return Err(MirrorError::NoRoom(format!(
                "{free} bytes are free at {}, {wanted} are needed; make room or lower the limits",
                root.display()
            )));
        };
        let size = oldest.size();
        if evict(&oldest).map_err(local)? {
            tracing::info!(folder = %oldest.folder().display(), bytes = size, "mirror evicted");
            total = total.saturating_sub(size);
        }
    }
}

/// Removes a mirror unless somebody uses it.
fn evict(place: &Place) -> io::Result<bool> {
    let Some(_held) = try_lock(place.folder())? else { return Ok(false) };
    place.discard()?;
    place.clear()?;
    Ok(true)
}

/// Removes what was never finished or was discarded, in all mirrors that nobody uses. Blocks.
pub(super) fn clear_all(root: &Path) -> io::Result<()> {
    for place in Place::all(root)? {
        if let Some(_held) = try_lock(place.folder())? {
            place.clear()?;
        }
    }
    Ok(())
}

fn free(root: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(root)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::handler::git::mirror::place::Mark;
    use crate::handler::git::mirror::source::Source;
    use crate::handler::git::oid::ObjectFormat;
    use crate::handler::git::options::SourcePolicy;

    fn mirror(root: &Path, name: &str, bytes: usize) -> Place {
        let source = Source::new(name, "https://a/b", &SourcePolicy::default()).unwrap();
        let place = Place::of(root, &source).unwrap();
        let unfinished = place.unfinished();
        fs::create_dir(&unfinished).unwrap();
        fs::write(unfinished.join("x"), vec![0; bytes]).unwrap();
        place.finish(&unfinished, &Mark::new(ObjectFormat::Sha1, false)).unwrap();
        place.measure().unwrap();
        place.touch().unwrap();
        place
    }

    #[test]
    fn the_one_used_longest_ago_goes_first() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let places: Vec<Place> = ["a", "b", "c"].map(|name| mirror(root, name, 10_000)).into();
        let limits = MirrorLimits { total: 25_000, free: 0, ..MirrorLimits::default() };
        let held = try_lock(places[0].folder()).unwrap();
        make_room(root, &places[2], 0, &limits).unwrap();
        assert!(places[0].mark().is_some(), "it is in use");
        assert!(places[1].mark().is_none() && places[2].mark().is_some());
        drop(held);
        make_room(root, &places[2], 10_000, &limits).unwrap();
        assert!(places[0].mark().is_none());
        let greedy = MirrorLimits { free: u64::MAX, ..limits };
        let refused = make_room(root, &places[2], 0, &greedy);
        assert!(matches!(refused, Err(MirrorError::NoRoom(_))), "{refused:?}");
        assert!(places[2].mark().is_some());
    }
}
