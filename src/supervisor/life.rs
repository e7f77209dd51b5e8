//! The life of the process: one event at a time, then every part stopped in reverse.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::allowance::{Allowance, UnitLimit};
use super::backlog::BacklogGauges;
use super::build;
use super::confinement::Confinement;
use super::heartbeat::Heartbeat;
use super::marker::Marker;
use super::pace::Pace;
use super::reload::Reloader;
use super::signals::{Request, Requests};
use super::start::StartError;
use super::status::{self, Facts};
use super::systemd::Notifier;
use crate::clock::{BootInstant, Clock};
use crate::protocol::drain::{Event, Phase};
use crate::web::{Server, Vitals};
use crate::worker::fetcher::Fetcher;
use crate::worker::maintenance::{Maintenance, STALE_CONSUMER};
use crate::worker::progress::Progress;
use crate::worker::shared::Shared;
use crate::worker::slots::Slots;
use crate::worker::{Context, Served};

/// How often the status line is renewed and, without a watchdog, the loop comes round.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// How often processes that escaped from their tasks are looked for.
const SWEEP_ORPHANS_EVERY: Duration = Duration::from_secs(5);

/// How long the parts have to end once the way out is over.
const LAST_MOMENTS: Duration = Duration::from_millis(250);

/// The running process.
pub(super) struct Life {
    pub(super) requests: Requests,
    pub(super) notifier: Notifier,
    pub(super) unit: UnitLimit,
    pub(super) allowance: Allowance,
    /// What systemd is asked while everything goes on.
    pub(super) questions: JoinSet<UnitLimit>,
    pub(super) pace: Pace,
    pub(super) shared: Arc<Shared>,
    pub(super) queues: Vec<(Served, Arc<Slots>, Progress)>,
    pub(super) context: Context,
    pub(super) marker: Option<Marker>,
    pub(super) reloader: Reloader,
    pub(super) heartbeat: Heartbeat,
    pub(super) vitals: Vitals,
    pub(super) web: Option<Server>,
    /// Until it is started.
    pub(super) backlog: Option<BacklogGauges>,
}

impl Life {
    /// One event at a time until the way out is over.
    pub(super) async fn run(mut self) -> Result<(), StartError> {
        let mut helpers = self.start_helpers();
        let mut fetchers = self.start_fetchers();
        Notifier::ready();
        let mut ticks = tokio::time::interval(
            self.notifier.watchdog_interval().map_or(STATUS_EVERY, |limit| limit.min(STATUS_EVERY)),
        );
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let phase = loop {
            self.vitals.coordinator.came_round();
            let phase = self.context.phase.get();
            if phase.is_over() {
                break phase;
            }
            let event = tokio::select! {
                biased;
                request = self.requests.next() => match request {
                    Request::Drain(event) => event,
                    Request::Reload => {
                        self.reload();
                        continue;
                    }
                },
                () = until(self.context.clock, phase.next_deadline()) => {
                    self.look_for_progress();
                    Event::Tick
                }
                ended = fetchers.join_next() => match ended {
                    Some(ended) => {
                        ended.map_err(|error| StartError::Died(error.to_string()))?;
                        continue;
                    }
                    None => Event::Idle,
                },
                Some(ended) = helpers.join_next() => {
                    ended.map_err(|error| StartError::Died(error.to_string()))?;
                    continue;
                }
                error = self.heartbeat.died() => return Err(error),
                Some(answer) = self.questions.join_next() => {
                    if let Ok(unit) = answer {
                        self.limited(unit);
                    }
                    continue;
                }
                _ = ticks.tick() => {
                    self.tick();
                    Event::Tick
                }
            };
            self.on(event);
        };
        self.end(phase, &mut helpers, &mut fetchers).await;
        Ok(())
    }

    fn on(&mut self, event: Event) {
        let before = self.context.phase.get();
        let phase = before.on(event, self.context.clock.now(), self.allowance.budget());
        if phase == before {
            return;
        }
        if let (Event::Progress, Phase::Draining { hard, .. }) = (event, phase) {
            let end = hard + self.allowance.parts.last_words();
            // Later than systemd knows of would be too late.
            if !Notifier::extend(end.saturating_since(self.context.clock.now())) {
                return;
            }
        }
        if event == Event::Terminate && !matches!(before, Phase::Draining { .. }) {
            Notifier::stopping();
            // The unit may have been read anew since the start.
            self.questions.spawn(UnitLimit::ask());
            // What ended before is no progress of the drain.
            self.pace.look(self.context.counts.verdicts(), self.context.clock.now());
        }
        self.context.stop.publish(phase);
        self.context.phase.replace(phase);
        if event != Event::Progress {
            tracing::info!("{}", status::transition(event, phase, self.shared.in_flight()));
        }
        self.tell_status();
    }

    /// systemd says how long it waits for a stop. If a drain has begun, more than was thought is left
    /// alone.
    fn limited(&mut self, unit: UnitLimit) {
        if matches!(unit, UnitLimit::Unknown(_)) || unit == self.unit {
            return;
        }
        if !self.context.phase.get().is_leaving() {
            // Asked for by a reload.
            self.unit = unit;
            return self.allow();
        }
        let before = self.allowance;
        self.unit = unit;
        let now = Allowance::of(&self.reloader.config.drain, &self.unit);
        if now.parts.total() >= before.parts.total() {
            return;
        }
        self.allowance = now;
        self.context.limits.drain_grace.replace(now.parts.kill_after);
        let phase = self.context.phase.get().shortened(
            self.context.clock.now(),
            before.budget(),
            now.budget(),
        );
        self.context.phase.replace(phase);
        self.tell_status();
    }

    fn tick(&mut self) {
        self.look_for_progress();
        self.tell_status();
        if self.vitals.stuck().is_none() {
            self.notifier.watchdog();
        }
    }

    /// A drain in which tasks end may take longer, where that is wanted.
    fn look_for_progress(&mut self) {
        let ended = self.context.counts.verdicts();
        if self.pace.look(ended, self.context.clock.now()) {
            self.on(Event::Progress);
        }
    }

    fn tell_status(&mut self) {
        let (tasks, oldest) = self.context.beats.census();
        let health = &self.context.health;
        let facts = Facts {
            phase: self.context.phase.get(),
            now: self.context.clock.now(),
            tasks,
            oldest,
            ended: self.pace.in_the_last_minute(),
            complaint: health.complaint(),
            away: health.away_for(),
            refusal: health.refusal(),
            stuck: self.vitals.stuck().map(|stuck| stuck.to_string()),
            pending: self.reloader.pending.clone(),
        };
        self.notifier.status(&facts.line());
    }

    fn reload(&mut self) {
        Notifier::reloading();
        if let Some(config) = self.reloader.reload() {
            for served in build::served(config) {
                for (_, slots, _) in self.queues.iter().filter(|(q, _, _)| q.name == served.name) {
                    slots.set_concurrency(served.concurrency);
                }
            }
            self.allow();
            // The unit may have changed as well; a signal does not wait for the answer.
            self.questions.spawn(UnitLimit::ask());
        }
        Notifier::ready();
    }

    /// Fits the drain of the configuration into what systemd allows.
    fn allow(&mut self) {
        let before = self.allowance;
        self.allowance = Allowance::of(&self.reloader.config.drain, &self.unit);
        if self.allowance == before {
            return;
        }
        tracing::info!("{}", self.allowance.told());
        self.context.limits.drain_grace.replace(self.allowance.parts.kill_after);
        if let Some(marker) = &mut self.marker {
            marker.renew(&self.allowance);
        }
    }

    fn start_fetchers(&self) -> JoinSet<()> {
        let mut fetchers = JoinSet::new();
        for (served, slots, progress) in &self.queues {
            let context = Context { progress: progress.clone(), ..self.context.clone() };
            fetchers.spawn(Fetcher::new(context, served.clone(), Arc::clone(slots)).run());
        }
        fetchers
    }

    fn start_helpers(&mut self) -> JoinSet<()> {
        let mut helpers = JoinSet::new();
        let names = self.queues.iter().map(|(served, _, _)| served.name.clone()).collect();
        helpers.spawn(Maintenance::new(self.context.clone(), names).run());
        let (health, stores) = (Arc::clone(&self.context.health), self.context.stores.clone());
        helpers.spawn(async move { health.watch(&stores).await });
        helpers.spawn(sweep_orphans(Arc::clone(&self.reloader.confinement)));
        if let Some(backlog) = self.backlog.take() {
            helpers.spawn(backlog.watch(Arc::clone(&self.context.health)));
        }
        let (health, count) = (Arc::clone(&self.context.health), self.queues.len());
        helpers.spawn(async move {
            health.until_ready().await;
            tracing::info!("both stores answer: pulling from {count} queues");
        });
        helpers
    }

    /// The way out is over: in reverse, each part with a bound.
    async fn end(mut self, phase: Phase, helpers: &mut JoinSet<()>, fetchers: &mut JoinSet<()>) {
        let _ = tokio::time::timeout(LAST_MOMENTS, async {
            while fetchers.join_next().await.is_some() {}
        })
        .await;
        fetchers.abort_all();
        helpers.abort_all();
        self.heartbeat.end();
        let reaped = tokio::time::timeout(LAST_MOMENTS, self.leave_the_groups()).await;
        if reaped.is_err() {
            tracing::debug!("the consumers stay behind; another worker reaps them");
        }
        self.heartbeat.join_ended();
        crate::handler::exec::sweep();
        self.reloader.confinement.sweep();
        if phase == Phase::Stopped {
            if let Some(marker) = self.marker.take() {
                marker.clear();
            }
            tracing::info!("drained, nothing left behind");
        } else {
            tracing::warn!(
                "the drain's budget is spent with {} tasks in hand; other workers take them over \
                 when their leases end",
                self.shared.in_flight()
            );
        }
        self.notifier.status("stopped");
        if let Some(web) = self.web.take() {
            web.end();
        }
    }

    async fn leave_the_groups(&self) {
        for (served, _, _) in &self.queues {
            let queue = &self.context.stores.queue;
            let _ = queue.reap_consumers(&served.name, STALE_CONSUMER).await;
        }
    }
}

/// Sleeps until the deadline; for ever where there is none.
async fn until(clock: Clock, deadline: Option<BootInstant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.saturating_since(clock.now())).await,
        None => std::future::pending().await,
    }
}

/// Kills what escaped from the programs of tasks.
async fn sweep_orphans(confinement: Arc<Confinement>) {
    let mut ticks = tokio::time::interval(SWEEP_ORPHANS_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let swept = crate::handler::exec::sweep();
        confinement.sweep();
        if swept.killed > 0 {
            tracing::warn!("killed {} processes that tasks had left behind", swept.killed);
        }
    }
}
