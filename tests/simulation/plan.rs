//! What goes wrong in a simulation, and when, from its seed.

use std::time::Duration;

use queue_worker::protocol::drain::Event;

use super::chance::Chance;
use super::link::Side;

/// Something that happens to the world.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Act {
    /// A producer adds this arrival of the workload.
    Arrive(usize),
    /// A worker starts in this slot, unless there is one.
    Start(usize),
    Kill(usize),
    Freeze(usize, Duration),
    Order(usize, Event),
    JumpForward(Duration),
    JumpBack(Duration),
    /// A store is away; calls hang until their deadline, or are refused.
    Outage(Side, Duration, bool),
    RestartPostgres(Duration),
    /// Redis forgets everything.
    Flush,
    /// All pending entries can be taken over at once, whoever is busy with them.
    Steal,
}

/// The faults of a world with so many slots for workers, until `end`.
pub(crate) fn plan(chance: &mut Chance, slots: usize, end: Duration) -> Vec<(Duration, Act)> {
    let mut plan = Vec::new();
    for slot in 0..slots {
        plan.push((chance.ms(0, 1_000), Act::Start(slot)));
    }
    let last = u64::try_from(end.as_millis()).unwrap();
    for _ in 0..chance.number(0, 14) {
        let when = chance.ms(500, last);
        let slot = chance.index(slots);
        let act = fault(chance, slot);
        plan.push((when, act));
        if matches!(act, Act::Order(_, Event::Terminate)) && chance.hit(0.2) {
            plan.push((when + chance.ms(0, 2_000), act));
        }
        if chance.hit(0.1) {
            plan.push((when, Act::Order(slot, Event::Quiet)));
            plan.push((when + chance.ms(0, 5_000), Act::Order(slot, Event::Continue)));
        }
    }
    plan
}

fn fault(chance: &mut Chance, slot: usize) -> Act {
    match chance.number(0, 15) {
        0..3 => Act::Kill(slot),
        3..6 => Act::Order(slot, Event::Terminate),
        6 => Act::Order(slot, Event::DrainInBackground),
        7..9 => Act::Freeze(slot, chance.ms(500, 14_000)),
        9 => Act::JumpForward(chance.ms(500, 8_000)),
        10 => Act::JumpBack(chance.ms(500, 8_000)),
        11 => Act::Outage(Side::Redis, chance.ms(200, 6_000), chance.hit(0.5)),
        12 => Act::Outage(Side::Postgres, chance.ms(200, 9_000), chance.hit(0.5)),
        13 => Act::RestartPostgres(chance.ms(200, 9_000)),
        14 => Act::Flush,
        _ => Act::Steal,
    }
}
