//! The heartbeat's thread: a runtime and connections of its own, so that nothing else delays it.
//!
//! It is to live as long as the process. Without it nobody renews a lease, nor cancels a run whose
//! lease is over; so if it ends before it was asked to, [`Heartbeat::died`] tells, and the process ends.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::build;
use super::start::{StartError, system};
use crate::clock::Clock;
use crate::config::Config;
use crate::domain::WorkerId;
use crate::worker::heartbeat::{self, Beats};

/// The running thread, and how to end it.
pub(super) struct Heartbeat {
    thread: Option<std::thread::JoinHandle<()>>,
    end: Option<oneshot::Sender<()>>,
    /// Why the thread has ended; closed without a word if it panicked.
    ended: oneshot::Receiver<String>,
}

impl Heartbeat {
    /// Starts the thread.
    pub(super) fn start(
        config: &Config,
        worker: WorkerId,
        beats: &Arc<Beats>,
    ) -> Result<Self, StartError> {
        let (config, beats) = (config.clone(), Arc::clone(beats));
        Self::spawn(move |end| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| format!("its runtime did not start: {error}"))?;
            runtime.block_on(async {
                let built = build::stores(&config, worker, Clock::System)
                    .map_err(|error| format!("its stores cannot be built: {error}"))?;
                let stop = async { drop(end.await) };
                heartbeat::run(&beats, &built.stores, config.lease.heartbeat, stop).await;
                Ok(())
            })
        })
    }

    /// A thread that runs `beat` until its argument resolves.
    fn spawn(
        beat: impl FnOnce(oneshot::Receiver<()>) -> Result<(), String> + Send + 'static,
    ) -> Result<Self, StartError> {
        let (end, asked) = oneshot::channel();
        let (tell, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("heartbeat".to_owned())
            .spawn(move || {
                let why = beat(asked).err().unwrap_or_else(|| "it was told to end".to_owned());
                let _ = tell.send(why);
            })
            .map_err(system("start the heartbeat's thread"))?;
        Ok(Self { thread: Some(thread), end: Some(end), ended })
    }

    /// Resolves when the thread has ended without having been asked to. Not to be called again then.
    pub(super) async fn died(&mut self) -> StartError {
        let why = (&mut self.ended).await.unwrap_or_else(|_| "it panicked".to_owned());
        StartError::Died(format!("the heartbeat: {why}"))
    }

    /// Asks it to end.
    pub(super) fn end(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
    }

    /// Joins the thread if it has ended; it is not waited for.
    pub(super) fn join_ended(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.is_finished()
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_ends_unasked_is_told_of() {
        let mut heartbeat = Heartbeat::spawn(|_| panic!("a bug")).unwrap();
        assert!(heartbeat.died().await.to_string().contains("the heartbeat: it panicked"));
        let mut heartbeat = Heartbeat::spawn(|_| Err("no runtime".to_owned())).unwrap();
        assert!(heartbeat.died().await.to_string().contains("the heartbeat: no runtime"));
    }

    #[tokio::test]
    async fn one_that_beats_says_nothing_and_ends_when_it_is_asked_to() {
        let beat = |end: oneshot::Receiver<()>| {
            let _ = end.blocking_recv();
            Ok(())
        };
        let mut heartbeat = Heartbeat::spawn(beat).unwrap();
        tokio::select! {
            biased;
            error = heartbeat.died() => panic!("{error}"),
            () = tokio::task::yield_now() => {}
        }
        heartbeat.end();
        heartbeat.thread.take().unwrap().join().unwrap();
    }
}
