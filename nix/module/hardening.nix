# What a worker may not do, as lines of its unit that a user can override one by one.
#
# A worker without `exec` and `git-analysis` handlers starts no program, so that nearly everything can
# be taken from it. With them it has to leave room for arbitrary programs: all system calls but those
# that only an administrator needs, memory that is both writable and executable (JIT compilers), the
# whole of /proc, a view on other users' files, and the control groups, of which it makes one for each
# task.
{ lib, exec }:
lib.mapAttrs (_: lib.mkDefault) (
  {
    AmbientCapabilities = "";
    CapabilityBoundingSet = "";
    KeyringMode = "private";
    LockPersonality = true;
    NoNewPrivileges = true;
    PrivateDevices = true;
    PrivateMounts = true;
    PrivateTmp = true;
    ProtectClock = true;
    ProtectHome = true;
    ProtectHostname = true;
    ProtectKernelLogs = true;
    ProtectKernelModules = true;
    ProtectKernelTunables = true;
    ProtectProc = "invisible";
    ProtectSystem = "strict";
    RemoveIPC = true;
    RestrictNamespaces = true;
    RestrictRealtime = true;
    RestrictSUIDSGID = true;
    SystemCallArchitectures = "native";
    SystemCallErrorNumber = "EPERM";
    UMask = "0077";
  }
  // (
    if exec then
      {
        Delegate = "yes";
        ProtectControlGroups = false;
        RestrictAddressFamilies = [
          "AF_UNIX"
          "AF_INET"
          "AF_INET6"
          "AF_NETLINK"
        ];
        SystemCallFilter = [ "~@clock @cpu-emulation @module @obsolete @raw-io @reboot @swap" ];
      }
    else
      {
        MemoryDenyWriteExecute = true;
        PrivateUsers = true;
        ProcSubset = "pid";
        ProtectControlGroups = true;
        RestrictAddressFamilies = [
          "AF_UNIX"
          "AF_INET"
          "AF_INET6"
        ];
        SystemCallFilter = [
          "@system-service"
          "~@privileged @resources"
        ];
      }
  )
)
