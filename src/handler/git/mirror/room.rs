//! Room on the disk: what all mirrors take together, and what must stay free.
//!
//! The mirrors used longest ago go first, each under its own exclusive lock and only if nobody reads
//! it. Their sizes are those noted after the last fetch. None goes in vain: what all that nobody uses
//! would give back has to be enough. A file that some child has open gives its bytes back when that is
//! closed, so what was evicted counts by its size, and not by what is free at once.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::error::MirrorError;
use super::git_mirrors::{GitMirrors, local};
use super::lock::{Held, try_lock};
use super::place::Place;
use super::source::Source;
use crate::handler::git::options::MirrorLimits;

/// The disk has what was evicted within this time: children that wait for more keep packs open for some
/// seconds.
const GIVE_BACK_TIME: Duration = Duration::from_secs(15);
/// How often it is looked whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl GitMirrors {
    /// Evicts what has to go for `more` bytes in a mirror.
    async fn evict(&self, place: &Place, more: u64, held: &Held) -> Result<(), MirrorError> {
        let (root, place, limits) = (self.root.clone(), place.clone(), self.transfer.limits);
        let made = move || Ok(make_room(&root, &place, more, &limits));
        held.blocking(made).await.map_err(local)?
    }

    /// The same, and waits until the disk has given it back.
    pub(super) async fn make_room(
        &self,
        place: &Place,
        more: u64,
        held: &Held,
    ) -> Result<(), MirrorError> {
        self.evict(place, more, held).await?;
        let until = Instant::now() + GIVE_BACK_TIME;
        loop {
            match lack(&self.root, more, &self.transfer.limits).map_err(local)? {
                0 => return Ok(()),
                lack if Instant::now() >= until => {
                    return Err(no_room(&self.root, lack, "also after mirrors were evicted"));
                }
                _ => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Makes others go for a mirror that has just been made.
    pub(super) async fn settle(
        &self,
        place: &Place,
        source: &Source,
        held: &Held,
    ) -> Result<(), MirrorError> {
        match self.evict(place, 0, held).await {
            // It is here and whole: what is lacking now, the next one will ask for.
            Err(MirrorError::NoRoom(detail)) => {
                tracing::warn!(source = source.name(), %detail, "the mirror leaves too little room");
                Ok(())
            }
            evicted => evicted,
        }
    }
}

/// Makes room for `more` bytes in the mirror at `place`, whose exclusive lock is held. Blocks.
pub(super) fn make_room(
    root: &Path,
    place: &Place,
    more: u64,
    limits: &MirrorLimits,
) -> Result<(), MirrorError> {
    let local = |error: io::Error| MirrorError::Local(format!("{}: {error}", root.display()));
    let places = Place::all(root).map_err(local)?;
    let taken = places.iter().map(Place::taken).fold(more, u64::saturating_add);
    // Alone it may be as large as a mirror may be.
    let surplus = taken.saturating_sub(limits.total);
    let lack = lack(root, more, limits).map_err(local)?;
    if surplus == 0 && lack == 0 {
        return Ok(());
    }
    let mut others: Vec<Place> =
        places.into_iter().filter(|other| other != place && other.size() > 0).collect();
    if lack > 0 {
        let idle = idle(&others).map_err(local)?;
        if idle < lack {
            return Err(no_room(
                root,
                lack,
                &format!("{idle} of them in mirrors that nobody uses"),
            ));
        }
    }
    others.sort_by_key(Place::used);
    evict(&others, surplus.max(lack)).map_err(local)
}

/// Bytes that have to come free before `more` are written.
pub(super) fn lack(root: &Path, more: u64, limits: &MirrorLimits) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(root)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    Ok(limits.free.saturating_add(more).saturating_sub(free))
}

/// The error for what is lacking, with what is known besides.
pub(super) fn no_room(root: &Path, lack: u64, detail: &str) -> MirrorError {
    MirrorError::NoRoom(format!(
        "{lack} bytes more have to be free at {}, {detail}; make room or lower the limits",
        root.display()
    ))
}

/// Bytes of the mirrors that nobody uses now.
fn idle(places: &[Place]) -> io::Result<u64> {
    let mut bytes = 0_u64;
    for place in places {
        if try_lock(place.folder())?.is_some() {
            bytes = bytes.saturating_add(place.size());
        }
    }
    Ok(bytes)
}

/// Removes the first of `places` that nobody uses, as many as take `wanted` bytes together.
fn evict(places: &[Place], wanted: u64) -> io::Result<()> {
    let mut gone = 0_u64;
    for place in places {
        if gone >= wanted {
            break;
        }
        let bytes = place.size();
        if remove(place)? {
            tracing::info!(folder = %place.folder().display(), bytes, "mirror evicted");
            gone = gone.saturating_add(bytes);
        }
    }
    Ok(())
}

/// Removes a mirror unless somebody uses it.
fn remove(place: &Place) -> io::Result<bool> {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::handler::git::mirror::place::Mark;
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
        // A clone under way counts as well.
        let unfinished = places[1].unfinished();
        fs::create_dir(&unfinished).unwrap();
        fs::write(unfinished.join("x"), vec![0; 10_000]).unwrap();
        make_room(root, &places[2], 0, &limits).unwrap();
        assert!(places[0].mark().is_none() && places[2].mark().is_some());
    }

    #[test]
    fn nothing_goes_in_vain() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let places: Vec<Place> = ["a", "b", "c"].map(|name| mirror(root, name, 10_000)).into();
        let greedy = MirrorLimits { total: 15_000, free: u64::MAX, ..MirrorLimits::default() };
        let refused = make_room(root, &places[2], 0, &greedy);
        assert!(matches!(refused, Err(MirrorError::NoRoom(_))), "{refused:?}");
        assert!(places.iter().all(|place| place.mark().is_some()));
        assert!(lack(root, 1, &greedy).unwrap() > 0);
        assert_eq!(lack(root, 0, &MirrorLimits { free: 0, ..greedy }).unwrap(), 0);
        // As many as are needed, and no more, though the disk may take its time.
        evict(&places, 10_500).unwrap();
        let left: Vec<bool> = places.iter().map(|place| place.mark().is_some()).collect();
        assert_eq!(left, [false, false, true]);
    }

    /// The folder that the operator gave may hold anything.
    #[test]
    fn what_is_not_ours_stays() {
        let root = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let ours = mirror(root.path(), "a", 10);
        let uuid = "0123456789abcdef0123456789abcdef";
        let digits = &uuid[..24];
        let kept = [
            root.path().join("alice/old-photos"),
            root.path().join("alice/new-1.git"),
            root.path().join(format!("alice/old-{uuid}.git")),
            root.path().join(format!("Bob-{digits}/old-{uuid}.git")),
            root.path().join(format!("new-{uuid}.git/old-{uuid}.git")),
            ours.folder().join("old-photos"),
            ours.folder().join(format!("new-{uuid}")),
            other.path().join(format!("old-{uuid}.git")),
        ];
        for path in &kept {
            fs::create_dir_all(path).unwrap();
            fs::write(path.join("x"), "mine").unwrap();
        }
        let links = [
            root.path().join(format!("carol-{digits}")),
            ours.folder().join(format!("old-{}.git", uuid.replace('0', "1"))),
        ];
        for link in &links {
            std::os::unix::fs::symlink(other.path(), link).unwrap();
        }
        let left = [ours.unfinished(), ours.folder().join(format!("old-{uuid}.git"))];
        for path in &left {
            fs::create_dir(path).unwrap();
        }
        clear_all(root.path()).unwrap();
        for path in &kept {
            assert!(path.join("x").exists(), "{}", path.display());
        }
        assert!(links.iter().all(|link| link.is_symlink()));
        assert!(left.iter().all(|path| !path.exists()));
        assert!(ours.mark().is_some());
        let litter = ["alice/lock", "alice/turnstile"].map(|name| root.path().join(name));
        assert!(litter.iter().all(|path| !path.exists()) && !other.path().join("lock").exists());
    }
}
