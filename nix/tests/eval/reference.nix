# The options of the modules as a page, docs/nixos-options.md.
{ lib, options }:
let
  shown = lib.filter (
    option: lib.hasPrefix "services.queue-worker" option.name && option.visible && !option.internal
  ) (lib.optionAttrSetToDocList options);

  # A fence around code of several lines, none around what is Markdown already.
  labelled =
    label: shown:
    let
      text = lib.removeSuffix "\n" shown.text;
    in
    if shown._type == "literalMD" then
      "${label}: ${text}"
    else if lib.hasInfix "\n" text then
      "${label}:\n\n```nix\n${text}\n```"
    else
      "${label}: `${text}`";

  # {file}`x` and {command}`x` are known to NixOS' own manual only.
  plain =
    text: lib.removeSuffix "\n" (lib.replaceStrings [ "{file}`" "{command}`" ] [ "`" "`" ] text);

  section =
    option:
    lib.concatStringsSep "\n\n" (
      [
        "### `${option.name}`"
        (plain option.description)
        "Type: ${option.type}"
      ]
      ++ lib.optional (option ? default) (labelled "Default" option.default)
      ++ lib.optional (option ? example) (labelled "Example" option.example)
    );

  group =
    title: prefix:
    "## ${title}\n\n"
    + lib.concatMapStringsSep "\n\n" section (lib.filter (option: prefix option.name) shown);

  isHost = lib.hasPrefix "services.queue-worker-incus-host";
  isInstance = lib.hasPrefix "services.queue-worker.instances.<name>";
in
''
  # Options of the NixOS modules

  <!-- Generated from nix/: change the descriptions there, then `make nix-units`. -->

  `nixosModules.default` has `services.queue-worker`, `nixosModules.incus-host` has
  `services.queue-worker-incus-host`. [guides/nixos.md](guides/nixos.md) begins at the beginning; the
  keys of `settings` are in [configuration.md](configuration.md).

''
+ lib.concatStringsSep "\n\n" [
  (group "The machine" (name: !isHost name && !isInstance name))
  (group "A worker" isInstance)
  (group "An Incus host" isHost)
]
+ "\n"
