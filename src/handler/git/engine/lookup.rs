//! Looks objects up, each with an answer of its own, whatever happens to the child meanwhile.

use tokio::time::Instant;

use super::death::{Cause, Death};
use super::objects::{End, Object, Objects};
use super::spawner::Spawner;
use crate::handler::git::mirror::Mirror;
use crate::handler::git::oid::ObjectId;

/// Objects that are asked for together.
const GROUP: usize = 1000;

/// What is asked about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// Kind and size.
    Info,
    /// Also the content, up to so many bytes.
    Content(usize),
}

/// The objects of one mirror.
pub(super) struct Lookup<'a> {
    pub(super) spawner: &'a Spawner,
    pub(super) mirror: &'a Mirror,
    /// Started when it is needed.
    pub(super) child: Option<Objects>,
}

impl Lookup<'_> {
    /// One answer for each id, in their order.
    pub(super) async fn ask(
        &mut self,
        question: Question,
        ids: &[ObjectId],
    ) -> Vec<Result<Object, Death>> {
        let mut found = Vec::with_capacity(ids.len());
        for group in ids.chunks(GROUP) {
            let (objects, end) = self.attempt(question, group).await;
            let known = objects.len();
            found.extend(objects.into_iter().map(Ok));
            if end.is_some() {
                // Any of the rest may have been the cause.
                found.extend(self.singly(question, &group[known..]).await);
            }
        }
        found
    }

    async fn singly(&mut self, question: Question, ids: &[ObjectId]) -> Vec<Result<Object, Death>> {
        let mut found = Vec::with_capacity(ids.len());
        for (place, id) in ids.iter().enumerate() {
            match self.attempt(question, &[*id]).await {
                (objects, None) => found.extend(objects.into_iter().map(Ok)),
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
    async fn attempt(
        &mut self,
        question: Question,
        ids: &[ObjectId],
    ) -> (Vec<Object>, Option<(End, Death)>) {
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
        let answers = match question {
            Question::Info => child.info(ids, until).await,
            Question::Content(most) => child.contents(ids, most, until).await,
        };
        if let Some(end) = answers.end {
            return (answers.objects, Some((end, end.death(child).await)));
        }
        self.child = Some(child);
        (answers.objects, None)
    }
}
