//! Runs named cases one after the other, each within a limit, and prints a line for each.
//!
//! For programs that need a whole machine and root, which a test runner does not give: they are
//! test targets without a harness and do nothing unless told `--run`. A panic fails a case and not
//! the others. Nothing here decides what a case needs: the ground that they share does.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

/// How a case ended that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It holds; with a figure, where one tells something.
    Passed(String),
    /// It cannot be tried here; with the reason.
    Skipped(String),
}

/// The future of a case.
pub type Running = Pin<Box<dyn Future<Output = Verdict>>>;

/// One case over the ground `G`.
pub struct Case<G> {
    pub name: &'static str,
    pub limit: Duration,
    pub run: fn(Rc<G>) -> Running,
}

/// A case of a name, a limit in seconds and an async function of the ground.
macro_rules! case {
    ($name:literal, $limit:literal, $function:path) => {
        $crate::common::Case {
            name: $name,
            limit: std::time::Duration::from_secs($limit),
            run: |ground| Box::pin($function(ground)),
        }
    };
}
pub(crate) use case;

/// What the cases share.
pub trait Ground {
    /// What helps to understand why a case failed; printed after it.
    fn explain(&self, case: &str) -> String;
}

/// What the command line asks for.
pub enum Asked {
    /// Nothing: a test runner lists or runs all targets.
    Nothing,
    /// The cases whose names contain one of these; all, if there are none.
    Run(Vec<String>),
}

/// Reads the command line: `--run [NAME…]`.
pub fn asked() -> Asked {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some("--run") => Asked::Run(words.collect()),
        _ => Asked::Nothing,
    }
}

/// How many cases ended how.
#[derive(Debug, Default)]
pub struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Tally {
    /// Runs those of `cases` that were asked for.
    pub async fn run<G: Ground>(&mut self, cases: &[Case<G>], names: &[String], ground: &Rc<G>) {
        // A backtrace through the runtime hides the message.
        std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
        for case in cases {
            if !names.is_empty() && !names.iter().any(|name| case.name.contains(name.as_str())) {
                continue;
            }
            let start = Instant::now();
            let running = AssertUnwindSafe((case.run)(Rc::clone(ground))).catch_unwind();
            let ended = tokio::time::timeout(case.limit, running).await;
            let seconds = start.elapsed().as_secs_f64();
            match ended {
                Ok(Ok(Verdict::Passed(figure))) => {
                    self.passed += 1;
                    line("pass", case.name, seconds, &figure);
                }
                Ok(Ok(Verdict::Skipped(reason))) => {
                    self.skipped += 1;
                    line("SKIP", case.name, seconds, &reason);
                }
                Ok(Err(panic)) => {
                    self.failed += 1;
                    line("FAIL", case.name, seconds, &message(panic.as_ref()));
                    println!("{}", ground.explain(case.name));
                }
                Err(_) => {
                    self.failed += 1;
                    let limit = format!("not over after {} s", case.limit.as_secs());
                    line("FAIL", case.name, seconds, &limit);
                    println!("{}", ground.explain(case.name));
                }
            }
        }
    }

    /// Prints the sums. Fails if a case did, or if none ran at all.
    pub fn end(&self) -> ExitCode {
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
        let good = self.failed == 0 && self.passed + self.skipped > 0;
        if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Why this process has not the rights that `program` needs, if so: root, and mounting.
pub fn no_rights(program: &str) -> Option<String> {
    // capabilities(7)
    const SYS_ADMIN: u32 = 21;
    if !rustix::process::geteuid().is_root() {
        return Some(format!("{program} needs root: run this as root"));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or_default();
    (capabilities & (1 << SYS_ADMIN) == 0)
        .then(|| format!("{program} needs to mount, and this root may not (no CAP_SYS_ADMIN)"))
}

/// Says that nothing can be tried here, and why, so that nobody takes it for a pass.
pub fn skip_all(what: &str, reason: &str) -> ExitCode {
    println!("!!! SKIPPED: {what}: {reason}");
    println!("!!! Nothing of it was tested.");
    ExitCode::SUCCESS
}

fn line(verdict: &str, name: &str, seconds: f64, more: &str) {
    let line = format!("{verdict}  {name:<24} {seconds:6.1} s  {more}");
    println!("{}", line.trim_end());
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}
