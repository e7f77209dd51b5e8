//! The end of a runtime: what blocks a thread of it is left behind.
//!
//! Dropping a runtime waits without a limit for closures that block a thread, and the lookup of a
//! host's name is one: behind a resolver that does not answer, getaddrinfo(3) takes longer than any
//! stop may. Nobody needs its answer by then, and the process ends without it.

use std::future::Future;

use tokio::runtime::Runtime;

/// Runs `work` to its end and ends the runtime with it, at once: other tasks are dropped where they
/// wait, and threads that block go on until the process ends.
pub fn run_to_end<T>(runtime: Runtime, work: impl Future<Output = T>) -> T {
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Far more than an end takes, however busy the machine is.
    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn a_lookup_that_never_ends_does_not_hold_up_the_end() {
        let (answer, resolver) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let done = run_to_end(runtime, async {
                let (began, under_way) = tokio::sync::oneshot::channel();
                tokio::task::spawn_blocking(move || {
                    let _ = began.send(());
                    let _ = resolver.recv();
                });
                under_way.await
            });
            let _ = ended.send(done);
        });
        assert_eq!(end.recv_timeout(LIMIT), Ok(Ok(())), "it waits for what blocks");
        drop(answer);
        thread.join().unwrap();
    }
}
