//! What is kept of a drill for whoever looks for the reason: the report, and the rows and history of
//! each task that is not as planned.

use std::fmt::Write as _;

use sqlx::Row;

use super::ground::Ground;
use super::report::Report;

/// No more tasks than this are told of.
const MOST_TASKS: usize = 200;

/// Writes `report.json` and `evidence` into the folder.
pub(super) async fn write(
    ground: &Ground,
    report: &Report,
    suspects: &[String],
    locks: &[String],
    slowest: &[(String, f64)],
) -> anyhow::Result<()> {
    std::fs::write(ground.folder().join("report.json"), serde_json::to_string_pretty(report)?)?;
    let mut text = String::new();
    for lock in locks {
        writeln!(text, "lock left: {lock}")?;
    }
    for (task, seconds) in slowest {
        writeln!(text, "recovered after {seconds:.3} s: {task}")?;
    }
    let slow = slowest.iter().map(|(task, _)| task);
    let told: Vec<&String> = suspects.iter().take(MOST_TASKS).chain(slow).collect();
    for statement in [
        "SELECT to_jsonb(t)::text FROM queue_worker.processed_tasks t \
         WHERE task_id = ANY($1) ORDER BY task_id",
        "SELECT to_jsonb(e)::text FROM queue_worker.task_events e \
         WHERE task_id = ANY($1) ORDER BY task_id, id",
        "SELECT to_jsonb(e)::text FROM effects e WHERE task_id = ANY($1) ORDER BY seq",
    ] {
        for row in sqlx::query(statement).bind(&told).fetch_all(&ground.pool).await? {
            writeln!(text, "{}", row.try_get::<String, _>(0)?)?;
        }
    }
    std::fs::write(ground.folder().join("evidence"), text)?;
    Ok(())
}
