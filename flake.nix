{
  description = "A queue worker that loses nothing and does nothing twice, for systemd and NixOS";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;

      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      perSystem = f: lib.genAttrs systems (system: f system nixpkgs.legacyPackages.${system});
      package = system: self.packages.${system}.default;
    in
    {
      packages = perSystem (
        _: pkgs: {
          default = pkgs.callPackage ./nix/package.nix { };
        }
      );

      overlays.default = final: _: {
        queue-worker = final.callPackage ./nix/package.nix { };
      };

      nixosModules = {
        default =
          { pkgs, ... }:
          {
            imports = [ ./nix/module ];
            services.queue-worker.package = lib.mkDefault (package pkgs.stdenv.hostPlatform.system);
          };
        incus-host = ./nix/incus-host.nix;
      };

      apps = perSystem (
        system: _: {
          default = {
            type = "app";
            program = lib.getExe (package system);
            meta.description = "Run queue-worker";
          };
        }
      );

      devShells = perSystem (
        _: pkgs: {
          default = pkgs.callPackage ./nix/devshell.nix { };
        }
      );

      checks = perSystem (
        system: pkgs:
        import ./nix/checks.nix {
          inherit nixpkgs pkgs;
          package = package system;
          modules = self.nixosModules;
        }
      );

      formatter = perSystem (_: pkgs: pkgs.nixfmt-tree);
    };
}
