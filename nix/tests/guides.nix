# The machines that docs/guides shows, from the very text of the pages: `{ name, module }` for each block.
{ lib }:
let
  pages = lib.filter (lib.hasSuffix ".md") (lib.attrNames (builtins.readDir ../../docs/guides));

  # A module is a function or a set; a set may use what a function gets.
  module =
    text:
    import (
      builtins.toFile "guide.nix" (
        if builtins.match "\\{[^=]*}:.*" text != null then text else "{ config, lib, pkgs, ... }:\n${text}"
      )
    );

  blocks =
    page:
    lib.imap1 (number: text: {
      name = "${page}, block ${toString number}";
      module = module (lib.head (lib.splitString "\n```" text));
    }) (lib.tail (lib.splitString "\n```nix\n" (builtins.readFile (../../docs/guides + "/${page}"))));
in
lib.concatMap blocks pages
