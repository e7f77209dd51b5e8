//! Commands on pending entries that hold only while the entries are ours: give back, touch.
//!
//! Owner check and change are one script each; a worker that was frozen past its time and wakes
//! changes nothing that another one has taken over.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Cmd;

use super::super::QueueError;
use super::base::{Base, by_queue, millis, patience, push_id};
use super::parse;
use crate::coalesce::Pending;
use crate::connection::LuaScript;
use crate::domain::{EntryId, QueueName, RawEntry};

/// Entries of one touch script: well below the limit of Lua's `unpack`.
const MAX_TOUCH: usize = 500;

static GIVE_BACK: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new("give_back.lua", include_str!("give_back.lua")));
static RESTORE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new("restore.lua", include_str!("restore.lua")));
static TOUCH: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new("touch.lua", include_str!("touch.lua")));

/// An entry to give back, with the idle time that it gets.
#[derive(Clone)]
pub(super) struct GiveBack {
    pub(super) queue: QueueName,
    pub(super) entry: EntryId,
    pub(super) idle: Duration,
}

/// What became of an entry that was given back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    /// Its idle time is set, or it is somebody else's by now.
    Settled,
    /// The stream has lost it, and nobody else holds it.
    Gone,
}

/// One entry to give back, and who waits for it.
pub(super) type GivingBack = Pending<GiveBack, Result<Given, QueueError>>;

/// Gives a group back, one script call per queue.
pub(super) async fn give_back(base: Base, group: Vec<GivingBack>) {
    let (requests, replies): (Vec<GiveBack>, Vec<_>) =
        group.into_iter().map(Pending::split).unzip();
    let mut answers: Vec<Option<Result<Given, QueueError>>> = vec![None; requests.len()];
    for (queue, members) in by_queue(requests.iter().enumerate().map(|(at, one)| (&one.queue, at)))
    {
        let fill = |cmd: &mut Cmd| {
            base.script_args(cmd, queue);
            for at in &members {
                push_id(cmd, requests[*at].entry);
                cmd.arg(millis(requests[*at].idle));
            }
        };
        let given = base
            .link
            .script_twice(&GIVE_BACK, fill)
            .await
            .and_then(|answer| parse::numbers(answer).map_err(base.misread(GIVE_BACK.name())));
        for (nth, at) in members.iter().enumerate() {
            answers[*at] = Some(given.clone().map(|given| match given.get(nth) {
                Some(2) => Given::Gone,
                _ => Given::Settled,
            }));
        }
    }
    for (reply, answer) in replies.into_iter().zip(answers) {
        reply.answer(answer.unwrap_or(Ok(Given::Settled)));
    }
}

/// Adds the fields of a lost entry again, unless somebody else holds it or it is there after all. Done
/// twice it adds two: where its answer stays away once it was sent, the error is one not to be repeated.
pub(super) async fn restore(
    base: &Base,
    queue: &QueueName,
    entry: EntryId,
    raw: &RawEntry,
) -> Result<(), QueueError> {
    let fill = |cmd: &mut Cmd| {
        base.script_args(cmd, queue);
        push_id(cmd, entry);
        for (name, value) in &raw.fields {
            cmd.arg(&name[..]).arg(&value[..]);
        }
    };
    let deadline = base.link.deadline() + patience(raw.bytes());
    let connection = base.link.connection(base.link.deadline()).await?;
    connection.script_once(&RESTORE, deadline, fill).await.map(drop)
}

/// Resets the idle time of the entries that are ours; answers for each whether it is.
pub(super) async fn touch(
    base: &Base,
    entries: &[(QueueName, EntryId)],
) -> Result<Vec<bool>, QueueError> {
    let mut ours = vec![false; entries.len()];
    let indexed = entries.iter().enumerate().map(|(at, (queue, id))| (queue, (at, *id)));
    for (queue, members) in by_queue(indexed) {
        for part in members.chunks(MAX_TOUCH) {
            let fill = |cmd: &mut Cmd| {
                base.script_args(cmd, queue);
                for (_, id) in part {
                    push_id(cmd, *id);
                }
            };
            let answers = parse::numbers(base.link.script_twice(&TOUCH, fill).await?)
                .map_err(base.misread(TOUCH.name()))?;
            for ((at, _), answer) in part.iter().zip(answers) {
                ours[*at] = answer == 1;
            }
        }
    }
    Ok(ours)
}
