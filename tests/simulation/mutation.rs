//! Ways to break the protocol on purpose, to show that the checkers notice.
//!
//! Each is played at the border between worker and stores, as a worker or a store that is wrong in
//! that way would act; the code under test stays as it is.

/// One broken rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// The entry is acknowledged before the outcome is committed.
    AckBeforeCommit,
    /// An outcome is written whatever the fence says.
    NoFenceInRecord,
    /// An effect's success is written whatever the fence says.
    NoFenceInPerform,
    /// A claim is granted while another's lease stands.
    ClaimIgnoresLease,
    /// A takeover counts no crash.
    NoCrashOnTakeover,
    /// A give-back counts a crash.
    CrashOnGiveBack,
    /// A give-back burns an attempt.
    RetryOnDrain,
    /// A claim does not raise the fence.
    FenceStays,
    /// A lease is renewed whatever the fence says.
    RenewIgnoresFence,
    /// A renewal that failed counts as confirmed.
    RenewalNeverFails,
    /// Effects are written outside of the transaction.
    EffectOutsideTransaction,
    /// The row says that it is in the stream before it is.
    PromoteMarksFirst,
    /// A task is condemned without another look.
    CondemnWithoutRecheck,
    /// A row that is done can be claimed again.
    DoneIsClaimable,
    /// A lock is deleted whoever has it.
    UnlockWithoutCompare,
    /// A lock is extended whoever has it.
    RenewLockWithoutCompare,
    /// The heartbeat goes on after the release.
    BeatAfterRelease,
    /// The entry is handed over before its row is released.
    HandOverBeforeRelease,
    /// An entry is given back by one who lost it.
    GiveBackWithoutOwner,
    /// A consumer is deleted with what is pending for it.
    ReapWithPending,
    /// Locks stay after a drain.
    NoUnlock,
    /// A delay forgets the payload.
    DelayWithoutPayload,
    /// A claim forgets the payload of a task that has waited.
    ClaimForgetsPayload,
}
