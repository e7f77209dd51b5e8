//! What has happened, counted.

/// What has happened, for the test of the simulation itself.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) succeeded: usize,
    pub(crate) failed: usize,
    pub(crate) dead: usize,
    pub(crate) retries: usize,
    pub(crate) released: usize,
    pub(crate) takeovers: usize,
    pub(crate) promotions: usize,
    pub(crate) single_commits: usize,
    pub(crate) crashes: usize,
    pub(crate) clean_exits: usize,
    pub(crate) spent_drains: usize,
}

impl Tally {
    pub(crate) fn each(&self) -> [(&'static str, usize); 11] {
        [
            ("success", self.succeeded),
            ("failure", self.failed),
            ("death", self.dead),
            ("retry", self.retries),
            ("release", self.released),
            ("takeover", self.takeovers),
            ("promotion", self.promotions),
            ("single commit", self.single_commits),
            ("crash", self.crashes),
            ("clean exit", self.clean_exits),
            ("spent drain", self.spent_drains),
        ]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.dead += other.dead;
        self.retries += other.retries;
        self.released += other.released;
        self.takeovers += other.takeovers;
        self.promotions += other.promotions;
        self.single_commits += other.single_commits;
        self.crashes += other.crashes;
        self.clean_exits += other.clean_exits;
        self.spent_drains += other.spent_drains;
    }
}
