//! Keeps a mirror fast and small. Only under the exclusive lock, and a failure is never anybody's
//! failure but a line in the log.
//!
//! Packs are rolled up geometrically, so that the work stays in proportion to what is new; objects
//! that nothing reaches are kept for two weeks, and what is pinned is reached.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::error::MirrorError;
use super::git_mirrors::{GitMirrors, local};
use super::job::{Limits, Output, run};
use super::lock::Held;
use super::place::Place;
use super::room;
use super::transfer::{PINS, Transfer};
use crate::clock::Clock;
use crate::handler::git::oid::ObjectFormat;
use crate::handler::git::options::MirrorLimits;
use crate::handler::git::program::Program;

/// More packs than this make every lookup slow.
const MANY_PACKS: usize = 50;
/// More loose objects than this do too; they are counted in one of 256 folders.
const MANY_LOOSE: usize = 1024;
const FOLDERS: usize = 256;
/// Time for each of the three steps, together less than others wait for the lock by default; what is
/// not done then is done another time.
const STEP_TIME: Duration = Duration::from_secs(3 * 60);

/// Whether a mirror has become slow.
pub(super) fn is_due(git_dir: &Path) -> bool {
    let count = |folder: &str, end: &str| {
        let entries = fs::read_dir(git_dir.join("objects").join(folder)).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| name.ends_with(end)).count()
    };
    count("pack", ".pack") > MANY_PACKS || count("17", "") * FOLDERS > MANY_LOOSE
}

impl GitMirrors {
    /// Upkeep, if there is room for it: a repack may need as much again as the mirror has.
    pub(super) async fn tend(
        &self,
        place: &Place,
        format: ObjectFormat,
        held: &Held,
    ) -> Result<(), MirrorError> {
        let Transfer { program, limits, .. } = &self.transfer;
        match room::lack(&self.root, place.size(), limits).map_err(local)? {
            0 => tend(&place.mirror(), format, program, limits, held).await,
            lack => {
                let mirror = place.mirror();
                tracing::warn!(mirror = %mirror.display(), lack, "no room for upkeep, put off");
            }
        }
        Ok(())
    }
}

/// Repacks, writes the commit graph, and removes what is old and unreachable.
async fn tend(
    git_dir: &Path,
    format: ObjectFormat,
    program: &Program,
    limits: &MirrorLimits,
    held: &Held,
) {
    let steps: [&[&str]; 3] = [
        &["repack", "-q", "-d", "--geometric=2", "--write-midx"],
        &["prune", "--expire=2.weeks.ago"],
        &["commit-graph", "write", "--reachable", "--no-progress"],
    ];
    for step in steps {
        let mut command = program.command(git_dir, format, &[]);
        command.args(step);
        let memory = Limits { memory: Some(limits.fetch_memory), file: None };
        let until = Instant::now() + STEP_TIME;
        let said = match run(command, b"", Output::Locked(held), memory, until).await {
            Ok(done) if done.success => continue,
            Ok(done) => done.stderr,
            Err(error) => error.to_string(),
        };
        tracing::warn!(mirror = %git_dir.display(), step = step[0], error = %said, "upkeep failed");
    }
}

/// Removes the pins that are older than `age`.
pub(super) fn expire_pins(git_dir: &Path, age: Duration) -> io::Result<()> {
    let entries = match fs::read_dir(git_dir.join(PINS)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let now = u64::try_from(Clock::System.wall_ms()).unwrap_or(0);
    let now = std::time::SystemTime::UNIX_EPOCH + Duration::from_millis(now);
    for entry in entries {
        let entry = entry?;
        let modified = entry.metadata()?.modified()?;
        if now.duration_since(modified).is_ok_and(|old| old > age) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_pins_go() {
        let folder = tempfile::tempdir().unwrap();
        assert!(expire_pins(folder.path(), Duration::ZERO).is_ok());
        let pin = folder.path().join(PINS).join("1");
        fs::create_dir_all(pin.parent().unwrap()).unwrap();
        fs::write(&pin, "1").unwrap();
        expire_pins(folder.path(), Duration::from_secs(3600)).unwrap();
        assert!(pin.exists());
        fs::File::options()
            .write(true)
            .open(&pin)
            .unwrap()
            .set_modified(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();
        expire_pins(folder.path(), Duration::from_secs(3600)).unwrap();
        assert!(!pin.exists());
    }

    #[test]
    fn many_packs_make_it_due() {
        let folder = tempfile::tempdir().unwrap();
        let packs = folder.path().join("objects/pack");
        fs::create_dir_all(&packs).unwrap();
        for number in 0..=MANY_PACKS {
            assert!(!is_due(folder.path()));
            fs::write(packs.join(format!("{number}.pack")), "").unwrap();
        }
        assert!(is_due(folder.path()));
    }
}
