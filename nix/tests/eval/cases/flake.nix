# The outputs of the flake.
{
  words,
  lib,
  pkgs,
  evaluate,
  flake,
  ...
}:
let
  inherit (words) case equal;
in
[
  (equal "the flake has what it says"
    (lib.mapAttrs (_: lib.attrNames) (
      lib.removeAttrs flake.self [
        "nixosModules"
        "overlays"
      ]
    ))
    (
      lib.genAttrs [ "apps" "checks" "devShells" "formatter" "packages" ] (_: [
        "aarch64-linux"
        "x86_64-linux"
      ])
    )
  )
  (equal "the package is named after the program" flake.self.packages.x86_64-linux.default.pname
    "queue-worker"
  )
  (equal "the overlay adds the package" (flake.self.overlays.default pkgs pkgs).queue-worker.pname
    "queue-worker"
  )
  (equal "the app is the program" flake.self.apps.x86_64-linux.default.program
    "${flake.self.packages.x86_64-linux.default}/bin/queue-worker"
  )
  (case "the shell has the servers" (lib.all
    (package: lib.elem package flake.self.devShells.x86_64-linux.default.packages)
    [
      pkgs.redis
      pkgs.postgresql
    ]
  ) "it has not")
  (equal "the checks" (lib.attrNames flake.checks) [
    "clippy"
    "crash"
    "failover"
    "fmt"
    "module"
    "package"
    "shutdown"
    "switch"
  ])
  (case "each check is a derivation" (lib.all lib.isDerivation (
    lib.attrValues flake.checks
  )) "one is not")
  (equal "the module brings its package"
    (evaluate [
      flake.self.nixosModules.default
      { services.queue-worker.enable = true; }
    ]).config.services.queue-worker.package.pname
    "queue-worker"
  )
]
