# Settings as TOML, in place of the converter that nixpkgs calls at build time: one line for each
# section, whose content is an inline table.
{ lib }:
let
  value =
    one:
    if lib.isAttrs one then
      "{ ${
        lib.concatStringsSep ", " (
          lib.mapAttrsToList (key: inner: "${builtins.toJSON key} = ${value inner}") one
        )
      } }"
    else if lib.isList one then
      "[${lib.concatMapStringsSep ", " value one}]"
    else
      # TOML's basic strings, numbers and booleans are written like those of JSON.
      builtins.toJSON one;
in
settings: lib.concatLines (lib.mapAttrsToList (key: one: "${key} = ${value one}") settings)
