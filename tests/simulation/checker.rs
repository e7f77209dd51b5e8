//! What must always hold, judged at each write to a store, and once more at the end.
//!
//! The numbers in the messages are those of the invariants in ARCHITECTURE.md. The checker keeps its
//! own copy of each row, so that a store that lies about what was there before is found out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use queue_worker::domain::{
    Delivery, EntryId, Fence, Held, LockKey, LockToken, Origin, PayloadHash, QueueName, RawEntry,
    Task, TaskId, WorkerId,
};
use queue_worker::lease::Lock;
use queue_worker::lease::memory::MemoryLocks;
use queue_worker::ledger::memory::{Action, Change, Letter, MemoryTables, Row};
use queue_worker::ledger::{Beat, Grant, Status};
use queue_worker::queue::codec;
use queue_worker::queue::memory::MemoryStreams;

use super::link::{Link, Side};
use super::workload::{Spec, Workload};
use super::world::{LEASE, MAX_CRASHES, MAX_PAYLOAD, UNKNOWN_GIVE_UP};

/// After a fault of the world, what it explains is explained for so long.
const AFTERMATH: Duration = Duration::from_secs(15);

/// A run that is under way somewhere.
struct Active {
    link: Arc<Link>,
    id: TaskId,
    key: Option<LockKey>,
}

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

pub(crate) struct Checker {
    tables: MemoryTables,
    streams: MemoryStreams,
    locks: MemoryLocks,
    queue: QueueName,
    specs: BTreeMap<TaskId, Spec>,
    now: Duration,
    sequence: u64,
    violations: Vec<String>,
    pub(crate) tally: Tally,
    /// Rows as they were last seen in the log.
    rows: BTreeMap<TaskId, Row>,
    /// The newest fence of each resource.
    resources: BTreeMap<LockKey, Fence>,
    /// How many effects have been judged.
    effects_seen: usize,
    effects: BTreeMap<TaskId, u32>,
    /// The newest fence under which an effect on a resource was committed.
    effect_fences: BTreeMap<LockKey, Fence>,
    /// When a row was last done, or waiting with its payload.
    safe: BTreeMap<TaskId, u64>,
    deliveries: BTreeMap<(WorkerId, EntryId), u64>,
    postponed: BTreeSet<(WorkerId, EntryId)>,
    /// The entry that brought a task to a worker last.
    brought: BTreeMap<(WorkerId, TaskId), EntryId>,
    /// The claims that workers know of, with the fence and the local deadline.
    leases: BTreeMap<(WorkerId, TaskId), (Fence, Duration)>,
    active: Vec<Active>,
    /// How often a task failed by its own fault.
    failures: BTreeMap<TaskId, u32>,
    failed_for_good: BTreeSet<TaskId>,
    claimed_at: BTreeMap<TaskId, Duration>,
    released_tokens: BTreeSet<u128>,
    tokens: BTreeMap<WorkerId, BTreeSet<u128>>,
    links: BTreeMap<WorkerId, Arc<Link>>,
    /// How often a task has brought its worker down.
    brought_down: BTreeMap<TaskId, u32>,
    /// Workers that went without a clean exit, and when.
    gone: BTreeMap<WorkerId, Duration>,
    last_jump: Option<Duration>,
}

impl Checker {
    pub(crate) fn new(
        tables: MemoryTables,
        streams: MemoryStreams,
        locks: MemoryLocks,
        queue: QueueName,
        workload: &Workload,
    ) -> Self {
        Self {
            tables,
            streams,
            locks,
            queue,
            specs: workload.specs.clone(),
            now: Duration::ZERO,
            sequence: 0,
            violations: Vec::new(),
            tally: Tally::default(),
            rows: BTreeMap::new(),
            resources: BTreeMap::new(),
            effects_seen: 0,
            effects: BTreeMap::new(),
            effect_fences: BTreeMap::new(),
            safe: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            postponed: BTreeSet::new(),
            brought: BTreeMap::new(),
            leases: BTreeMap::new(),
            active: Vec::new(),
            failures: BTreeMap::new(),
            failed_for_good: BTreeSet::new(),
            claimed_at: BTreeMap::new(),
            released_tokens: BTreeSet::new(),
            tokens: BTreeMap::new(),
            links: BTreeMap::new(),
            brought_down: BTreeMap::new(),
            gone: BTreeMap::new(),
            last_jump: None,
        }
    }

    pub(crate) fn set_now(&mut self, now: Duration) {
        self.now = now;
        self.sequence += 1;
    }

    pub(crate) fn violations(&self) -> &[String] {
        &self.violations
    }

    fn violate(&mut self, what: String) {
        self.violations.push(format!("at {} ms: {what}", self.now.as_millis()));
    }

    // What the world does.

    pub(crate) fn starts_up(&mut self, link: &Arc<Link>) {
        self.links.insert(link.worker, Arc::clone(link));
    }

    pub(crate) fn jumped(&mut self) {
        self.last_jump = Some(self.now);
    }

    /// A worker went without giving back what it had.
    pub(crate) fn went(&mut self, worker: WorkerId, crashed: bool) {
        self.gone.insert(worker, self.now);
        self.active.retain(|run| run.link.worker != worker);
        if crashed {
            self.tally.crashes += 1;
        } else {
            self.tally.spent_drains += 1;
        }
    }

    // The ledger's rows.

    /// Judges what was written since the last time.
    pub(crate) fn judge(&mut self) {
        let changes = self.tables.take_log();
        self.judge_effects();
        for change in changes {
            self.judge_change(&change);
        }
    }

    fn judge_effects(&mut self) {
        let effects = self.tables.effects();
        for (key, value) in &effects[self.effects_seen..] {
            let id = TaskId::new(key).unwrap();
            let count = self.effects.entry(id.clone()).or_default();
            *count += 1;
            let count = *count;
            if count > 1 {
                self.violate(format!("1: {id} has {count} effects"));
            }
            if self.tables.row(&id).is_none_or(|row| row.status != Status::Succeeded) {
                self.violate(format!("1: {id} has an effect and has not succeeded"));
            }
            let fence = Fence(std::str::from_utf8(value).unwrap().parse().unwrap());
            if let Some(key) = self.specs.get(&id).and_then(|spec| spec.task.lock_key.clone()) {
                let last = self.effect_fences.insert(key.clone(), fence);
                if last.is_some_and(|last| last >= fence) {
                    self.violate(format!(
                        "2: the effect of {id} on {key} is under {fence} after {last:?}"
                    ));
                }
            }
        }
        self.effects_seen = effects.len();
    }

    fn judge_change(&mut self, change: &Change) {
        let Change { id, after, action, .. } = change;
        let before = self.rows.insert(id.clone(), after.clone());
        if is_safe(after) || before.as_ref().is_some_and(is_safe) {
            self.safe.insert(id.clone(), self.sequence);
        }
        self.judge_fence(change, before.as_ref());
        self.judge_crashes(change, before.as_ref());
        self.judge_end(change, before.as_ref());
        if *action == Action::Claim {
            self.claimed_at.insert(id.clone(), self.now);
        }
        if let Some(key) = &after.lock_key
            && let Some(resource) = self.tables.resource(key)
        {
            let last = self.resources.insert(key.clone(), resource.fence);
            if last.is_some_and(|last| last > resource.fence) {
                self.violate(format!("2: the fence of {key} fell to {}", resource.fence));
            }
        }
        match action {
            Action::Record if after.status == Status::Delayed => self.tally.retries += 1,
            Action::Record if after.status == Status::Released => self.tally.released += 1,
            Action::Promote => self.tally.promotions += 1,
            Action::Perform if change.under.is_none() => self.tally.single_commits += 1,
            _ => {}
        }
        match after.status {
            Status::Succeeded => self.tally.succeeded += 1,
            Status::Failed => self.tally.failed += 1,
            Status::Dead => self.tally.dead += 1,
            Status::Running | Status::Released | Status::Delayed => {}
        }
    }

    fn judge_fence(&mut self, change: &Change, before: Option<&Row>) {
        let Change { id, after, action, under, by, .. } = change;
        let old = before.map_or(Fence(0), |row| row.fence);
        let rises = match action {
            Action::Claim => true,
            Action::Perform => under.is_none(),
            Action::Record => after.status == Status::Released,
            Action::Delay => before.is_some_and(|row| row.status == Status::Running),
            Action::Condemn | Action::Renew | Action::Reserve | Action::Promote => false,
        };
        let wanted = Fence(old.0 + i64::from(rises));
        if after.fence != wanted {
            self.violate(format!(
                "2: {action:?} of {id} left its fence at {} from {old}",
                after.fence
            ));
        }
        if under.is_some_and(|under| under != old) {
            self.violate(format!("2: {action:?} of {id} under {under:?} at fence {old}"));
        }
        let Some(before) = before else { return };
        let takes = *action == Action::Claim || (*action == Action::Perform && under.is_none());
        let stands = before.status == Status::Running
            && before.lease_until.is_some_and(|until| until > self.tables.now_ms())
            && before.worker != Some(*by);
        if takes && stands {
            self.violate(format!("2: {id} was claimed while another's lease stood"));
        }
        let running = before.status == Status::Running;
        let ends_a_run = matches!(action, Action::Record | Action::Renew)
            || (*action == Action::Perform && under.is_some());
        if ends_a_run && !running {
            self.violate(format!("2: {action:?} of {id} while it was {:?}", before.status));
        }
        if matches!(before.status, Status::Succeeded | Status::Failed | Status::Dead) {
            self.violate(format!("6: {action:?} of {id} after it was {:?}", before.status));
        }
    }

    fn judge_crashes(&mut self, change: &Change, before: Option<&Row>) {
        let Change { id, after, action, by, .. } = change;
        let Some(before) = before else { return };
        let takes = match action {
            Action::Claim | Action::Delay | Action::Condemn => true,
            Action::Perform => change.under.is_none(),
            Action::Record | Action::Renew | Action::Reserve | Action::Promote => false,
        };
        let over = before.lease_until.filter(|until| *until <= self.tables.now_ms());
        let took_over = takes && before.status == Status::Running && over.is_some();
        let lease_ms = i64::try_from(LEASE.as_millis()).unwrap();
        let was_up = over.is_some_and(|until| self.tables.started_ms() < until - lease_ms);
        if after.crashes > before.crashes {
            self.tally.takeovers += 1;
            if !(took_over && was_up && after.crashes == before.crashes + 1) {
                self.violate(format!("5: {action:?} of {id} counted a crash"));
            } else if let Some(holder) = before.worker
                && !self.is_excused(holder, self.claimed_at.get(id).copied())
            {
                self.violate(format!("5: a crash of {id} was counted, and its worker is well"));
            }
        } else if took_over && was_up && before.worker != Some(*by) {
            self.violate(format!("5: {action:?} of {id} took over and counted no crash"));
        }
    }

    /// Whether something befell the worker since its claim that can cost it a lease. The claim's
    /// own answer may have been lost.
    fn is_excused(&self, worker: WorkerId, claimed_at: Option<Duration>) -> bool {
        let since = |at: Option<Duration>| at >= claimed_at;
        self.gone.contains_key(&worker)
            || since(self.last_jump)
            || self.links.get(&worker).is_some_and(|link| since(link.last_trouble(Side::Postgres)))
    }

    fn judge_end(&mut self, change: &Change, before: Option<&Row>) {
        let Change { id, after, action, .. } = change;
        let failures = self.failures.get(id).copied().unwrap_or_default();
        if after.attempts > failures {
            self.violate(format!(
                "5: {} attempts of {id} are burnt, it failed {failures} times",
                after.attempts
            ));
        }
        let now_ms = self.tables.now_ms();
        let spec = self.specs.get(id);
        match after.status {
            Status::Dead => {
                let crashed = *action == Action::Condemn
                    && after.crashes > MAX_CRASHES
                    && before.is_some_and(|row| {
                        row.status == Status::Running
                            && row.lease_until.is_some_and(|until| until <= now_ms)
                            && row.crashes + 1 >= after.crashes
                    });
                let give_up = i64::try_from(UNKNOWN_GIVE_UP.as_millis()).unwrap();
                let unknown = *action == Action::Delay
                    && after.waits_since.is_some_and(|since| now_ms - since >= give_up);
                if !crashed && !unknown {
                    self.violate(format!(
                        "6: {id} was declared dead by {action:?} from {before:?}"
                    ));
                }
            }
            Status::Failed => {
                let limit = spec.and_then(|spec| spec.task.max_attempts);
                let limit = limit.unwrap_or(super::handlers::MAX_ATTEMPTS);
                let spent = after.attempts >= limit || self.failed_for_good.contains(id);
                if *action != Action::Record || !spent {
                    self.violate(format!("6: {id} failed after {} attempts", after.attempts));
                }
            }
            Status::Succeeded => {
                let count = self.effects.get(id).copied().unwrap_or_default();
                if spec.is_some_and(|spec| spec.way.is_transactional()) && count != 1 {
                    self.violate(format!("1: {id} succeeded with {count} effects"));
                }
            }
            Status::Running | Status::Released | Status::Delayed => {}
        }
    }

    /// The end of a run was committed, as a worker is told that named this fence.
    pub(crate) fn committed(&mut self, id: &TaskId, under: Fence) {
        let Some(row) = self.tables.row(id) else { return };
        let fence = Fence(under.0 + i64::from(row.status == Status::Released));
        if row.fence != fence {
            self.violate(format!(
                "2: {id} ended under fence {under} while it was at {}",
                row.fence
            ));
        }
    }

    /// A renewal is about to be answered.
    pub(crate) fn renews(&mut self, held: &[Held], answers: &[Beat]) {
        for (held, answer) in held.iter().zip(answers) {
            let row = self.tables.row(&held.task_id);
            let ours =
                row.is_some_and(|row| row.fence == held.fence && row.status == Status::Running);
            if *answer == Beat::Renewed && !ours {
                self.violate(format!("2: {} was renewed under an old fence", held.task_id));
            }
        }
    }

    // Runs, and until when they may start.

    /// A worker learns that it has a claim, which it sent at `sent`.
    pub(crate) fn granted(&mut self, worker: WorkerId, grant: &Grant, sent: Duration) {
        let lease = (grant.held.fence, sent + LEASE);
        self.leases.insert((worker, grant.held.task_id.clone()), lease);
    }

    /// A worker learns that renewals were made, which it sent at `sent`.
    pub(crate) fn renewed(
        &mut self,
        worker: WorkerId,
        held: &[Held],
        answers: &[Beat],
        sent: Duration,
    ) {
        for (held, answer) in held.iter().zip(answers) {
            if *answer == Beat::Renewed
                && let Some((fence, until)) = self.leases.get_mut(&(worker, held.task_id.clone()))
                && *fence == held.fence
            {
                *until = (*until).max(sent + LEASE);
            }
        }
    }

    fn deadline(&self, worker: WorkerId, id: &TaskId) -> Option<Duration> {
        self.leases.get(&(worker, id.clone())).map(|(_, until)| *until)
    }

    /// An effect starts.
    pub(crate) fn starts(&mut self, link: &Arc<Link>, task: &Task) {
        let id = &task.id;
        if self.deadline(link.worker, id).is_none_or(|until| self.now >= until) {
            self.violate(format!("9: the effect of {id} starts after its deadline"));
        }
        let others: Vec<String> = self
            .active
            .iter()
            .filter(|run| {
                let same = run.id == *id || (run.key.is_some() && run.key == task.lock_key);
                let valid = self.deadline(run.link.worker, &run.id).is_some_and(|d| self.now < d);
                same && valid && self.last_jump.is_none()
            })
            .map(|run| format!("{} on {}", run.id, run.link.worker))
            .collect();
        if !others.is_empty() {
            self.violate(format!("2: {id} starts beside {others:?}"));
        }
        let key = task.lock_key.clone();
        self.active.push(Active { link: Arc::clone(link), id: id.clone(), key });
    }

    /// It has ended, or was dropped.
    pub(crate) fn ends(&mut self, worker: WorkerId, id: &TaskId) {
        if let Some(at) =
            self.active.iter().position(|run| run.link.worker == worker && run.id == *id)
        {
            self.active.remove(at);
        }
    }

    /// Whether a run of the task brings its worker down, as it does `times` times.
    pub(crate) fn crashes_now(&mut self, id: &TaskId, times: u32) -> bool {
        let so_far = self.brought_down.entry(id.clone()).or_default();
        let due = *so_far < times;
        *so_far += u32::from(due);
        due
    }

    /// A task failed by its own fault.
    pub(crate) fn fails(&mut self, id: &TaskId, for_good: bool) {
        *self.failures.entry(id.clone()).or_default() += 1;
        if for_good {
            self.failed_for_good.insert(id.clone());
        }
    }

    // The stream.

    pub(crate) fn delivered(&mut self, worker: WorkerId, entry: EntryId, raw: &RawEntry) {
        if let Some((id, _)) = self.decode(entry, raw.clone()) {
            self.brought.insert((worker, id), entry);
        }
        self.deliveries.insert((worker, entry), self.sequence);
        self.postponed.remove(&(worker, entry));
    }

    fn decode(&self, entry: EntryId, raw: RawEntry) -> Option<(TaskId, PayloadHash)> {
        let (queue, origin) = (self.queue.clone(), Origin::Fresh);
        let delivery = Delivery { queue, entry, origin, raw };
        codec::decode(&delivery, MAX_PAYLOAD).ok().map(|task| (task.id, task.hash))
    }

    /// An entry is about to be acknowledged and deleted.
    pub(crate) fn acks(&mut self, worker: WorkerId, entry: EntryId) {
        let Some(raw) = self.streams.entry(&self.queue, entry) else { return };
        let buried = self.tables.letters().iter().any(
            |letter| matches!(letter, Letter::Entry(queue, e, _) if *queue == self.queue && *e == entry),
        );
        let task = self.decode(entry, raw);
        let row = task.as_ref().and_then(|(id, _)| self.tables.row(id));
        let safe = match (&task, &row) {
            (Some((id, hash)), Some(row)) if row.hash == *hash => {
                let since = self.deliveries.get(&(worker, entry)).copied().unwrap_or(u64::MAX);
                is_safe(row) || self.safe.get(id).is_some_and(|at| *at >= since)
            }
            _ => buried,
        };
        if !safe {
            self.violate(format!(
                "3: {entry} of {task:?} is acknowledged while its row is {row:?}"
            ));
        }
    }

    /// A worker leaves an entry for a while, since another one is at its task.
    pub(crate) fn postpones(&mut self, worker: WorkerId, entry: EntryId) {
        self.postponed.insert((worker, entry));
    }

    pub(crate) fn pending(&self, entry: EntryId) -> Option<(WorkerId, Duration)> {
        let pending = self.streams.pending(&self.queue);
        pending.iter().find(|(id, ..)| *id == entry).map(|(_, owner, idle)| (*owner, *idle))
    }

    /// An entry is about to be handed over; answers who has it.
    pub(crate) fn hands_over(
        &mut self,
        worker: WorkerId,
        entry: EntryId,
        raw: &RawEntry,
    ) -> Option<(WorkerId, Duration)> {
        if let Some((id, hash)) = self.decode(entry, raw.clone())
            && let Some(row) = self.tables.row(&id)
        {
            let known = self.leases.get(&(worker, id.clone())).map(|(fence, _)| *fence);
            let ours = row.status == Status::Running && row.worker == Some(worker);
            let brought = self.brought.get(&(worker, id.clone())) == Some(&entry);
            if ours && brought && row.hash == hash && known == Some(row.fence) {
                self.violate(format!("3: {id} is handed over while it runs under our claim"));
            }
        }
        self.pending(entry)
    }

    /// An entry was given back by a worker that may have lost it before.
    pub(crate) fn gave_back(
        &mut self,
        worker: WorkerId,
        entry: EntryId,
        before: Option<(WorkerId, Duration)>,
    ) {
        if let Some((owner, _)) = before
            && owner != worker
            && self.pending(entry) != before
        {
            self.violate(format!("2: {entry} of {owner} was given back by {worker}"));
        }
    }

    // The locks.

    pub(crate) fn locked(&mut self, worker: WorkerId, lock: &Lock) {
        self.tokens.entry(worker).or_default().insert(lock.token.0);
    }

    pub(crate) fn unlocked(&mut self, lock: &Lock, before: Option<LockToken>) {
        if before != Some(lock.token) && before != self.locks.token(&lock.name) {
            self.violate(format!("7: {} was deleted with another's token", lock.name));
        }
        self.released_tokens.insert(lock.token.0);
    }

    pub(crate) fn relocked(&mut self, locks: &[Lock], before: &[Option<LockToken>]) {
        for (lock, before) in locks.iter().zip(before) {
            let after = self.locks.token(&lock.name);
            if before.is_some() && *before != after {
                self.violate(format!("8: {} changed hands by a renewal", lock.name));
            }
            if after == Some(lock.token) && self.released_tokens.contains(&lock.token.0) {
                self.violate(format!("8: {} lives on after its release", lock.name));
            }
        }
    }

    // Exits, and the end.

    /// A worker has drained.
    pub(crate) fn exits(&mut self, worker: WorkerId) {
        self.tally.clean_exits += 1;
        self.active.retain(|run| run.link.worker != worker);
        let quiet = |checker: &Self, side| {
            let trouble = checker.links.get(&worker).and_then(|link| link.last_trouble(side));
            trouble.is_none_or(|at| checker.now >= at + AFTERMATH)
        };
        if !quiet(self, Side::Redis) || !quiet(self, Side::Postgres) {
            return;
        }
        let tokens = self.tokens.get(&worker).cloned().unwrap_or_default();
        for (name, token, _) in self.locks.all() {
            if tokens.contains(&token.0) {
                self.violate(format!("7: {name} is still locked by {worker}, which has exited"));
            }
        }
        for (entry, owner, idle) in self.streams.pending(&self.queue) {
            if owner == worker && idle < LEASE && !self.postponed.contains(&(worker, entry)) {
                self.violate(format!("7: {entry} is pending for {worker}, which has exited"));
            }
        }
    }

    /// Whether every task has come to an end.
    pub(crate) fn is_done(&self) -> bool {
        self.streams.entries(&self.queue).is_empty()
            && self.specs.keys().all(|id| {
                self.rows.get(id).is_some_and(|row| {
                    matches!(row.status, Status::Succeeded | Status::Failed | Status::Dead)
                })
            })
    }

    /// The time is up: what has not come to an end?
    pub(crate) fn too_late(&mut self) {
        let open: Vec<String> = self
            .specs
            .keys()
            .filter_map(|id| {
                let row = self.tables.row(id);
                let done = row.as_ref().is_some_and(|row| {
                    matches!(row.status, Status::Succeeded | Status::Failed | Status::Dead)
                });
                (!done).then(|| format!("{id}: {row:?}"))
            })
            .collect();
        let entries: Vec<_> =
            self.streams.entries(&self.queue).into_iter().map(|(id, _)| id).collect();
        let pending = self.streams.pending(&self.queue);
        self.violate(format!(
            "4: not at an end: {open:#?}, entries {entries:?}, pending {pending:?}"
        ));
    }

    /// A worker does not exit.
    pub(crate) fn stays(&mut self) {
        self.violate("7: a worker does not exit".to_owned());
    }

    /// All workers have gone.
    pub(crate) fn finish(&mut self) {
        self.judge();
        for (id, row) in self.tables.rows() {
            let effects = self.effects.get(&id).copied().unwrap_or_default();
            let transactional = self.specs.get(&id).is_some_and(|spec| spec.way.is_transactional());
            if transactional && (row.status == Status::Succeeded) != (effects == 1) {
                self.violate(format!("1: {id} is {:?} with {effects} effects", row.status));
            }
            if row.status == Status::Dead
                && row.waits_since.is_none()
                && row.crashes != MAX_CRASHES + 1
            {
                self.violate(format!("6: {id} is dead after {} crashes", row.crashes));
            }
        }
        let mut letters = BTreeMap::<TaskId, u32>::new();
        for letter in self.tables.letters() {
            if let Letter::Task(id, _) = letter {
                *letters.entry(id).or_default() += 1;
            }
        }
        for (id, count) in letters {
            if count > 1 {
                self.violate(format!("6: {id} has {count} dead letters"));
            }
        }
        let left = (
            self.streams.entries(&self.queue).len(),
            self.streams.pending(&self.queue),
            self.locks.all(),
            self.streams.consumers(&self.queue),
        );
        if left.0 > 0 || !left.1.is_empty() || !left.2.is_empty() || !left.3.is_empty() {
            self.violate(format!("10: entries, pending, locks, consumers left: {left:?}"));
        }
    }
}

/// Whether the row needs no entry of the stream.
fn is_safe(row: &Row) -> bool {
    match row.status {
        Status::Succeeded | Status::Failed | Status::Dead => true,
        Status::Delayed | Status::Released | Status::Running => row.payload.is_some(),
    }
}
