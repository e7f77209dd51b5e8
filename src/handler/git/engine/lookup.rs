//! Looks objects up, each with an answer of its own, whatever happens to the child meanwhile.

use tokio::time::Instant;

use super::death::{Cause, Death};
use super::objects::{Answers, End, Object, Objects, Question};
use super::spawner::Spawner;
use crate::handler::git::mirror::Mirror;
use crate::handler::git::oid::ObjectId;

/// Objects that are asked for together.
const GROUP: usize = 1000;

/// The objects of one mirror.
pub(super) struct Lookup<'a> {
    pub(super) spawner: &'a Spawner,
    pub(super) mirror: &'a Mirror,
    /// Started when it is needed.
    pub(super) child: Option<Objects>,
}

impl Lookup<'_> {
    /// What `read` makes of the answer about each id, in their order.
    pub(super) async fn ask<T>(
        &mut self,
        question: Question,
        ids: &[ObjectId],
        read: impl Fn(&ObjectId, Object) -> T,
    ) -> Vec<Result<T, Death>> {
        let mut found = Vec::with_capacity(ids.len());
        for group in ids.chunks(GROUP) {
            let (answers, death) = self.attempt(question, group, &read).await;
            let known = answers.len();
            found.extend(answers.into_iter().map(Ok));
            if death.is_some() {
                // Any of the rest may have been the cause.
                found.extend(self.singly(question, &group[known..], &read).await);
            }
        }
        found
    }

    async fn singly<T>(
        &mut self,
        question: Question,
        ids: &[ObjectId],
        read: &impl Fn(&ObjectId, Object) -> T,
    ) -> Vec<Result<T, Death>> {
        let mut found = Vec::with_capacity(ids.len());
        for (place, id) in ids.iter().enumerate() {
            match self.attempt(question, &[*id], read).await {
                (answers, None) => found.extend(answers.into_iter().map(Ok)),
                (_, Some((End::Died, death))) => found.push(Err(death)),
                // What does not answer or start will not for the others either.
                (_, Some((End::Late, death))) => {
                    found.extend(ids[place..].iter().map(|_| Err(death.clone())));
                    break;
                }
            }
        }
        found
    }

    /// Asks; after an end the child is gone.
    async fn attempt<T>(
        &mut self,
        question: Question,
        ids: &[ObjectId],
        read: &impl Fn(&ObjectId, Object) -> T,
    ) -> (Vec<T>, Option<(End, Death)>) {
        let mut child = match self.child.take() {
            Some(child) => child,
            None => match self.spawner.objects(self.mirror) {
                Ok(child) => child,
                Err(error) => {
                    let detail = format!("git could not be started: {error}");
                    return (Vec::new(), Some((End::Late, Death { cause: Cause::Other, detail })));
                }
            },
        };
        let until = Instant::now() + self.spawner.limits.commit_time;
        let Answers { read, end } = child.ask(question, ids, until, read).await;
        if let Some(end) = end {
            return (read, Some((end, end.death(child).await)));
        }
        self.child = Some(child);
        (read, None)
    }
}
