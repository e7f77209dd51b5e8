# As much of nixpkgs as evaluating the module needs: packages whose paths are placeholders, and the
# functions that make files, which remember what they were given.
{ lib }:
let
  placeholder = name: "/nix/store/00000000000000000000000000000000-${name}";

  package =
    name:
    {
      type = "derivation";
      inherit name;
      pname = name;
      version = "0";
      outPath = placeholder name;
      outputs = [ "out" ];
      meta.mainProgram = name;
    };

  json =
    let
      value =
        lib.types.oneOf (
          with lib.types;
          [
            bool
            int
            float
            str
            path
            (attrsOf value)
            (listOf value)
          ]
        )
        // {
          description = "TOML value";
        };
    in
    value;
in
lib.genAttrs [
  "coreutils"
  "findutils"
  "gnugrep"
  "gnused"
  "systemd"
  "hello"
  "git"
  "imagemagick"
  "queue-worker"
] package
// {
  inherit placeholder;
  formats.toml = _: {
    type = json;
    generate = name: value: package name // { inherit value; };
  };
  formats.yaml = _: {
    type = json;
    generate = name: value: package name // { inherit value; };
  };
  runCommand =
    name: _: script:
    package name // { inherit script; };
  writeText = name: text: package name // { inherit text; };
  writeTextDir = path: text: package (baseNameOf path) // { inherit path text; };
  writeShellScript = name: text: package name // { inherit text; };
}
