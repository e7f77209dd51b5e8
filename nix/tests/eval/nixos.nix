# As much of NixOS as the module talks to, with the types that NixOS has where they decide whether a
# definition is accepted, and units rendered line by line as NixOS renders them.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;

  anything =
    default:
    mkOption {
      type = types.anything;
      inherit default;
    };

  # Files by name that are somewhere at run time.
  files = mkOption {
    type = types.attrsOf (
      types.submodule (
        { name, ... }:
        {
          freeformType = types.attrsOf types.anything;
          options.path = mkOption { default = "/run/secrets/${name}"; };
        }
      )
    );
    default = { };
  };

  unitName = types.strMatching "[a-zA-Z0-9@%:_.\\-]+[.](service|socket|device|mount|automount|swap|target|path|timer|scope|slice)";
  unitNames = mkOption {
    type = types.listOf unitName;
    default = [ ];
  };

  # All lists, which add up, or all single values, which have to be equal.
  directive = lib.mkOptionType {
    name = "systemd option";
    merge =
      loc: definitions:
      let
        kept = lib.filterOverrides definitions;
      in
      if builtins.isList (lib.head kept).value then
        lib.concatMap (
          definition:
          if builtins.isList definition.value then
            definition.value
          else
            throw "${lib.showOption loc}: a mix of lists and single values"
        ) kept
      else
        lib.options.mergeEqualOption loc kept;
  };

  service = types.submodule (
    { name, config, ... }:
    {
      options = lib.genAttrs [ "wantedBy" "wants" "after" "requires" "partOf" ] (_: unitNames) // {
        description = mkOption {
          type = types.singleLineStr;
          default = "";
        };
        documentation = mkOption { type = types.listOf types.str; };
        unitConfig = mkOption { type = types.attrsOf directive; };
        serviceConfig = mkOption { type = types.attrsOf directive; };
        environment = mkOption { type = types.attrsOf (types.nullOr types.str); };
        path = mkOption { type = types.listOf (types.either types.package types.str); };
        reloadTriggers = mkOption {
          type = types.listOf directive;
          default = [ ];
        };
        restartTriggers = mkOption {
          type = types.listOf types.unspecified;
          default = [ ];
        };
        reloadIfChanged = mkOption {
          type = types.bool;
          default = false;
        };
        restartIfChanged = mkOption {
          type = types.bool;
          default = true;
        };
        text = mkOption { type = types.str; };
      };
      config = {
        path = lib.mkAfter (
          with pkgs;
          [
            coreutils
            findutils
            gnugrep
            gnused
            systemd
          ]
        );
        environment.PATH = "${lib.makeBinPath config.path}:${
          lib.makeSearchPathOutput "bin" "sbin" config.path
        }";
        text = render name config;
      };
    }
  );

  section =
    attributes:
    lib.concatStrings (
      lib.concatLists (
        lib.mapAttrsToList (
          key: value:
          map (
            one:
            "${key}=${
              if one == true then
                "true"
              else if one == false then
                "false"
              else
                toString one
            }\n"
          ) (lib.toList value)
        ) attributes
      )
    );

  render =
    name: unit:
    let
      named =
        key: attribute:
        lib.optionalAttrs (unit.${attribute} != [ ]) { ${key} = toString unit.${attribute}; };
      triggers =
        key: attribute:
        lib.optionalAttrs (unit.${attribute} != [ ]) { ${key} = pkgs.placeholder "${key}-${name}"; };
      switch =
        if unit.reloadIfChanged then
          "X-ReloadIfChanged=true\n"
        else if !unit.restartIfChanged then
          "X-RestartIfChanged=false\n"
        else
          "";
      environment = lib.concatStrings (
        lib.mapAttrsToList (
          key: value: "Environment=${builtins.toJSON "${key}=${value}"}\n"
        ) unit.environment
      );
    in
    "[Unit]\n"
    + section (
      unit.unitConfig
      // named "Requires" "requires"
      // named "Wants" "wants"
      // named "After" "after"
      // named "PartOf" "partOf"
      // triggers "X-Restart-Triggers" "restartTriggers"
      // triggers "X-Reload-Triggers" "reloadTriggers"
      // named "Documentation" "documentation"
      // {
        Description = unit.description;
      }
    )
    + "\n[Service]\n"
    + environment
    + switch
    + section unit.serviceConfig
    + lib.optionalString (unit.wantedBy != [ ]) "\n[Install]\nWantedBy=${toString unit.wantedBy}\n";

  redisServer = types.submodule (
    { name, ... }:
    {
      options = {
        enable = mkOption { type = types.bool; };
        appendOnly = mkOption { type = types.bool; };
        appendFsync = mkOption { type = types.str; };
        unixSocket = mkOption { default = "/run/redis-${name}/redis.sock"; };
        group = mkOption { default = "redis-${name}"; };
        settings = mkOption { type = types.attrsOf types.str; };
        bind = mkOption { type = types.nullOr types.str; };
        port = mkOption { type = types.port; };
        requirePassFile = mkOption { type = types.nullOr types.path; };
      };
    }
  );
in
{
  options = {
    assertions = mkOption {
      type = types.listOf types.unspecified;
      default = [ ];
    };
    warnings = mkOption {
      type = types.listOf types.str;
      default = [ ];
    };
    boot.isContainer = mkOption {
      type = types.bool;
      default = false;
    };
    environment.systemPackages = mkOption {
      type = types.listOf types.package;
      default = [ ];
    };
    environment.etc = anything { };
    systemd.packages = mkOption {
      type = types.listOf types.package;
      default = [ ];
    };
    systemd.tmpfiles.settings = anything { };
    systemd.services = mkOption {
      type = types.attrsOf service;
      default = { };
    };
    users.users = anything { };
    users.groups = anything { };
    networking = anything { };
    nixpkgs = anything { };
    # Of sops-nix and agenix, which the guides use.
    sops.secrets = files;
    sops.templates = files;
    sops.placeholder = anything {
      redis-password = "<redis-password>";
      postgres-password = "<postgres-password>";
    };
    age.secrets = files;
    programs.ssh.knownHosts = anything { };
    specialisation = mkOption {
      type = types.attrsOf (
        types.submodule { options.configuration = mkOption { type = types.deferredModule; }; }
      );
      default = { };
    };
    system = anything { };
    virtualisation.memorySize = mkOption { type = types.int; };
    services.redis.servers = mkOption {
      type = types.attrsOf redisServer;
      default = { };
    };
    services.postgresql = {
      enable = mkOption {
        type = types.bool;
        default = false;
      };
      enableTCPIP = mkOption { type = types.bool; };
      authentication = mkOption { type = types.lines; };
      ensureDatabases = mkOption {
        type = types.listOf types.str;
        default = [ ];
      };
      ensureUsers = mkOption {
        type = types.listOf types.attrs;
        default = [ ];
      };
    };
    virtualisation.incus = {
      enable = mkOption {
        type = types.bool;
        default = false;
      };
      softDaemonRestart = mkOption {
        type = types.bool;
        default = true;
      };
      preseed = mkOption {
        type = types.nullOr (types.submodule { freeformType = (pkgs.formats.yaml { }).type; });
        default = null;
      };
    };
  };

  options.systemd.units = anything { };
  config.systemd.units = lib.mapAttrs' (
    name: unit: lib.nameValuePair "${name}.service" { unit = pkgs.writeText name unit.text; }
  ) config.systemd.services;
}
