//! Native handlers: panics, runtimes of their own, and what happens to a run that is dropped.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_worker::clock::Clock;
use queue_worker::domain::{
    Failure, FailureClass, Fence, Kind, PayloadHash, QueueName, Task, TaskId,
};
use queue_worker::handler::{Handler, Run, native};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

const LIMIT: Duration = Duration::from_secs(20);

fn run(payload: &'static [u8]) -> Run {
    let kind = Kind::new("k").unwrap();
    let task = Task {
        id: TaskId::new("t").unwrap(),
        queue: QueueName::new("q").unwrap(),
        payload: payload.into(),
        lock_key: None,
        max_attempts: None,
        timeout: None,
        not_before_ms: None,
        traceparent: None,
        hash: PayloadHash::of(&kind, payload, None),
        kind,
    };
    Run {
        task: task.into(),
        fence: Fence(1),
        attempt: 1,
        deadline: Clock::System.now() + LIMIT,
        deadline_ms: 0,
        cancel: CancellationToken::new(),
    }
}

async fn execute(handler: &Handler, run: Run) -> Result<Option<Bytes>, Failure> {
    let Handler::External(handler) = handler else { panic!("not external") };
    tokio::time::timeout(LIMIT, handler.run(run)).await.expect("it took too long")
}

fn other_runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).thread_name("handlers").build().unwrap()
}

fn sum(run: &Run) -> Result<Option<Bytes>, Failure> {
    let numbers: Vec<i64> = native::json(&run.task.payload)?;
    assert!(!numbers.is_empty(), "nothing to sum up");
    let thread = std::thread::current().name().unwrap_or_default().to_owned();
    Ok(Some(format!("{} on {thread}", numbers.iter().sum::<i64>()).into()))
}

#[tokio::test]
async fn results_failures_and_panics() {
    let runtime = other_runtime();
    let here = native::external(async |run| sum(&run));
    let there = native::external_on(runtime.handle().clone(), async |run| sum(&run));
    for (handler, is_there) in [(&here, false), (&there, true)] {
        let result = execute(handler, run(b"[1, 2, 3]")).await.unwrap().unwrap();
        assert!(result.starts_with(b"6 on "));
        assert_eq!(result.ends_with(b"handlers"), is_there, "{result:?}");
        let failure = execute(handler, run(b"[1, ")).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::ForGood);
        let failure = execute(handler, run(b"[]")).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::Retry { after: None });
        assert_eq!(failure.status.as_deref(), Some("panic"));
        assert_eq!(failure.message, "handler panicked: nothing to sum up");
    }
    runtime.shutdown_background();
}

#[tokio::test]
async fn a_panic_before_the_future_exists_is_caught() {
    fn refuse(_run: Run) -> std::future::Ready<Result<Option<Bytes>, Failure>> {
        panic!("at once")
    }
    let failure = execute(&native::external(refuse), run(b"")).await.unwrap_err();
    assert_eq!(failure.message, "handler panicked: at once");
}

#[tokio::test]
async fn dropping_a_run_stops_it_on_the_other_runtime() {
    struct Stopped(Arc<Notify>);
    impl Drop for Stopped {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let runtime = other_runtime();
    let (started, stopped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (start, stop) = (started.clone(), stopped.clone());
    let handler = native::external_on(runtime.handle().clone(), move |_run| {
        let (start, guard) = (start.clone(), Stopped(stop.clone()));
        async move {
            start.notify_one();
            std::future::pending::<()>().await;
            drop(guard);
            Ok(None)
        }
    });
    tokio::select! {
        _ = execute(&handler, run(b"")) => panic!("it ended"),
        () = started.notified() => {}
    }
    tokio::time::timeout(LIMIT, stopped.notified()).await.expect("it goes on");
    runtime.shutdown_background();
}

#[tokio::test]
async fn a_runtime_that_is_gone_is_a_failure() {
    let runtime = other_runtime();
    let handler = native::external_on(runtime.handle().clone(), async |_run| Ok(None));
    runtime.shutdown_background();
    let failure = execute(&handler, run(b"")).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Retry { after: None });
}
