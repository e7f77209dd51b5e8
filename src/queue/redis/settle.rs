//! Group commands that add and remove: `XADD`, and `XDEL` with `XACK`.

use redis::{Cmd, Pipeline};

use super::super::QueueError;
use super::base::{Base, GROUP, by_queue, push_id, stream_key};
use super::parse;
use crate::coalesce::Pending;
use crate::domain::{EntryId, QueueName, RawEntry};

/// One entry to acknowledge and delete, and who waits for it.
pub(super) type Settling = Pending<(QueueName, EntryId), Result<(), QueueError>>;
/// One entry to add, and who waits for its id.
pub(super) type Appending = Pending<(QueueName, RawEntry), Result<EntryId, QueueError>>;

/// Acknowledges and deletes a group: per queue one `XDEL` and one `XACK`, in this order, so that no
/// entry is ever acknowledged and left in the stream; what was only deleted is acknowledged by
/// whoever reclaims it. No transaction: a Redis that is full refuses every command within one.
pub(super) async fn settle(base: Base, group: Vec<Settling>) {
    let queues = by_queue(group.iter().map(|one| (&one.request.0, one.request.1)));
    let mut pipeline = Pipeline::with_capacity(2 * queues.len());
    for (queue, ids) in &queues {
        let key = stream_key(queue);
        let mut delete = Cmd::with_capacity(ids.len() + 2, ids.len() * 20 + 64);
        delete.arg("XDEL").arg(&key);
        let mut ack = Cmd::with_capacity(ids.len() + 3, ids.len() * 20 + 64);
        ack.arg("XACK").arg(&key).arg(GROUP);
        for id in ids {
            push_id(&mut delete, *id);
            push_id(&mut ack, *id);
        }
        pipeline.add_command(delete).add_command(ack);
    }
    let settled = base.link.pipeline_twice(&pipeline, "XDEL and XACK").await;
    let mut refused: Vec<(QueueName, QueueError)> = Vec::new();
    if let Ok(answers) = &settled {
        for ((queue, _), answers) in queues.iter().zip(answers.chunks(2)) {
            let errors = answers.iter().filter_map(|answer| answer.as_ref().err());
            refused.extend(errors.take(1).map(|error| ((*queue).clone(), error.clone())));
        }
    }
    for one in group {
        let answer = match &settled {
            Err(error) => Err(error.clone()),
            Ok(_) => match refused.iter().find(|(queue, _)| *queue == one.request.0) {
                Some((_, error)) => Err(error.clone()),
                None => Ok(()),
            },
        };
        one.answer(answer);
    }
}

/// Adds a group of entries in one write; each gets its own answer.
pub(super) async fn append(base: Base, group: Vec<Appending>) {
    let mut pipeline = Pipeline::with_capacity(group.len());
    for one in &group {
        let (queue, raw) = &one.request;
        let mut add = Cmd::with_capacity(raw.fields.len() * 2 + 3, raw.bytes() + 64);
        add.arg("XADD").arg(stream_key(queue)).arg("*");
        for (name, value) in &raw.fields {
            add.arg(&name[..]).arg(&value[..]);
        }
        pipeline.add_command(add);
    }
    let deadline = base.link.deadline();
    let answers = match base.link.connection(deadline).await {
        Err(error) => Err(error),
        Ok(connection) => connection
            .pipeline(&pipeline, "XADD", deadline)
            .await
            .map(|answers| answers.into_iter().map(move |one| connection.check(one, "XADD"))),
    };
    match answers {
        Err(error) => group.into_iter().for_each(|one| one.answer(Err(error.clone()))),
        Ok(answers) => {
            for (one, answer) in group.into_iter().zip(answers) {
                let id = answer.and_then(|id| parse::id(&id).map_err(base.misread("XADD")));
                one.answer(id);
            }
        }
    }
}
