//! Group commands that add and remove: `XADD`, and `XACK` with `XDEL`.

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

/// Acknowledges and deletes a group: per queue one `XACK` and one `XDEL`, all in one transaction,
/// so that no entry is ever acknowledged and left in the stream.
pub(super) async fn settle(base: Base, group: Vec<Settling>) {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.atomic();
    for (queue, ids) in by_queue(group.iter().map(|one| (&one.request.0, one.request.1))) {
        let key = stream_key(queue);
        let mut ack = Cmd::with_capacity(ids.len() + 3, ids.len() * 20 + 64);
        ack.arg("XACK").arg(&key).arg(GROUP);
        let mut delete = Cmd::with_capacity(ids.len() + 2, ids.len() * 20 + 64);
        delete.arg("XDEL").arg(&key);
        for id in ids {
            push_id(&mut ack, id);
            push_id(&mut delete, id);
        }
        pipeline.add_command(ack).add_command(delete);
    }
    let answer = base.link.pipeline_twice(&pipeline, "XACK and XDEL").await.map(drop);
    for one in group {
        one.answer(answer.clone());
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
