//! The ledger's rows, change by change.

use std::time::Duration;

use queue_worker::domain::{Fence, Held, TaskId, WorkerId};
use queue_worker::ledger::memory::{Action, Change, Row};
use queue_worker::ledger::{Beat, Status};

use super::super::handlers::MAX_ATTEMPTS;
use super::super::link::Side;
use super::super::world::{LEASE, MAX_CRASHES, UNKNOWN_GIVE_UP};
use super::{Checker, is_safe};

impl Checker {
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
                self.violate(&format!("1: {id} has {count} effects"));
            }
            if self.tables.row(&id).is_none_or(|row| row.status != Status::Succeeded) {
                self.violate(&format!("1: {id} has an effect and has not succeeded"));
            }
            let fence = Fence(std::str::from_utf8(value).unwrap().parse().unwrap());
            if let Some(key) = self.specs.get(&id).and_then(|spec| spec.task.lock_key.clone()) {
                let last = self.effect_fences.insert(key.clone(), fence);
                if last.is_some_and(|last| last >= fence) {
                    self.violate(&format!(
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
                self.violate(&format!("2: the fence of {key} fell to {}", resource.fence));
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
            self.violate(&format!(
                "2: {action:?} of {id} left its fence at {} from {old}",
                after.fence
            ));
        }
        if under.is_some_and(|under| under != old) {
            self.violate(&format!("2: {action:?} of {id} under {under:?} at fence {old}"));
        }
        let Some(before) = before else { return };
        let takes = *action == Action::Claim || (*action == Action::Perform && under.is_none());
        let stands = before.status == Status::Running
            && before.lease_until.is_some_and(|until| until > self.tables.now_ms())
            && before.worker != Some(*by);
        if takes && stands {
            self.violate(&format!("2: {id} was claimed while another's lease stood"));
        }
        let running = before.status == Status::Running;
        let ends_a_run = matches!(action, Action::Record | Action::Renew)
            || (*action == Action::Perform && under.is_some());
        if ends_a_run && !running {
            self.violate(&format!("2: {action:?} of {id} while it was {:?}", before.status));
        }
        if matches!(before.status, Status::Succeeded | Status::Failed | Status::Dead) {
            self.violate(&format!("6: {action:?} of {id} after it was {:?}", before.status));
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
                self.violate(&format!("5: {action:?} of {id} counted a crash"));
            } else if let Some(holder) = before.worker
                && !self.is_excused(holder, self.claimed_at.get(id).copied())
            {
                self.violate(&format!("5: a crash of {id} was counted, and its worker is well"));
            }
        } else if took_over && was_up && before.worker != Some(*by) {
            self.violate(&format!("5: {action:?} of {id} took over and counted no crash"));
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
            self.violate(&format!(
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
                    self.violate(&format!(
                        "6: {id} was declared dead by {action:?} from {before:?}"
                    ));
                }
            }
            Status::Failed => {
                let limit = spec.and_then(|spec| spec.task.max_attempts);
                let limit = limit.unwrap_or(MAX_ATTEMPTS);
                let spent = after.attempts >= limit || self.failed_for_good.contains(id);
                if *action != Action::Record || !spent {
                    self.violate(&format!("6: {id} failed after {} attempts", after.attempts));
                }
            }
            Status::Succeeded => {
                let count = self.effects.get(id).copied().unwrap_or_default();
                if spec.is_some_and(|spec| spec.way.is_transactional()) && count != 1 {
                    self.violate(&format!("1: {id} succeeded with {count} effects"));
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
            self.violate(&format!(
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
                self.violate(&format!("2: {} was renewed under an old fence", held.task_id));
            }
        }
    }
}
