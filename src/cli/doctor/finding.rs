//! What a check found: a level, the fact, why it matters, and the remedy.

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// Works, and will hurt one day.
    Warning,
    /// Tasks can be lost, cut off or left undone.
    Error,
}

impl Level {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// `redis.policy` and the like: stable, for scripts.
    pub(super) check: &'static str,
    /// Which server, unit or folder.
    pub(super) about: String,
    pub(super) found: String,
    /// Why it matters; nothing where all is well.
    pub(super) why: Option<String>,
    pub(super) remedy: Option<String>,
}

/// All findings about one thing.
#[derive(Debug)]
pub(super) struct Findings {
    about: String,
    pub(super) all: Vec<Finding>,
}

impl Findings {
    pub(super) fn about(about: impl Into<String>) -> Self {
        Self { about: about.into(), all: Vec::new() }
    }

    /// The thing has a better name; what was found so far keeps the old one.
    pub(super) fn set_about(&mut self, about: String) {
        self.about = about;
    }

    /// It is as it should be.
    pub(super) fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.push(Level::Ok, check, found.into(), None, None);
    }

    /// It is good to know.
    pub(super) fn note(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.push(Level::Note, check, found.into(), Some(why.into()), Some(remedy.into()));
    }

    /// It works, and will hurt one day.
    pub(super) fn warning(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.push(Level::Warning, check, found.into(), Some(why.into()), Some(remedy.into()));
    }

    /// Tasks can be lost, cut off or left undone.
    pub(super) fn error(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.push(Level::Error, check, found.into(), Some(why.into()), Some(remedy.into()));
    }

    fn push(
        &mut self,
        level: Level,
        check: &'static str,
        found: String,
        why: Option<String>,
        remedy: Option<String>,
    ) {
        self.all.push(Finding { level, check, about: self.about.clone(), found, why, remedy });
    }

    /// The level of a check, and the worst where it found several things.
    #[cfg(test)]
    pub(super) fn level(&self, check: &str) -> Option<Level> {
        let found = self.all.iter().filter(|finding| finding.check == check);
        found.map(|finding| finding.level).max()
    }

    /// What is not as it should be, for the message of an assertion.
    #[cfg(test)]
    pub(super) fn trouble(&self) -> Vec<(&'static str, Level)> {
        let found = self.all.iter().filter(|finding| finding.level > Level::Note);
        found.map(|finding| (finding.check, finding.level)).collect()
    }
}
