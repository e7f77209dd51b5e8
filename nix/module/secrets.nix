# Where settings would put a secret into the Nix store, as paths of keys: a password, by its key or in a
# URL, and a file of secrets that lies in the store. It looks at everything, whatever a key is called on
# the way, and rather refuses a text that only looks like a URL with a password.
{ lib }:
let
  # A path is copied into the store as soon as somebody asks for its text.
  inStore =
    value: builtins.isPath value || (builtins.isString value && lib.hasPrefix builtins.storeDir value);

  # Of `header_files` and `credential_files` each key is a name of the user's own.
  file =
    key: value:
    if lib.hasSuffix "_files" key && lib.isAttrs value then
      lib.any inStore (lib.attrValues value)
    else
      lib.hasSuffix "_file" key && inStore value;

  password =
    key: value:
    lib.elem key [
      "password"
      "secret"
    ]
    && builtins.isString value;

  matches = pattern: text: builtins.match pattern text != null;

  # Of one word in lower case.
  passwordInUrl =
    word:
    let
      parts = builtins.match "(.*[^a-z0-9+.-])?([a-z][a-z0-9+.-]*)://(.*)" word;
      scheme = builtins.elemAt parts 1;
      rest = builtins.elemAt parts 2;
      # Nothing but a host and a port in front of the path. Only the path of a page has an @: elsewhere what
      # looks like a path is the end of a password that was not percent-encoded.
      path = if scheme == "http" || scheme == "https" then "/[^?#]*" else "/[^@?#]*";
      bare = matches "(\\[[^]]*]|[^]@:/?#[]*)(:[0-9]*)?(${path})?([?#].*)?" rest;
      store = lib.toLower builtins.storeDir;
    in
    parts != null
    && (
      (matches "[^@:/?#]*:.+@.*" rest && !bare)
      || matches ".*[?&]([a-z_-]*[_-])?(ssl)?pass(word)?=[^&#].*" rest
      || matches ".*[?&]ssl-?key=${lib.escapeRegex store}.*" rest
    );

  url =
    value:
    builtins.isString value
    && lib.any (word: builtins.isString word && passwordInUrl word) (
      builtins.split "[[:space:]'\"]+" (lib.toLower value)
    );

  # What ssh reads its own key from.
  sshKey =
    key: value:
    key == "ssh_command"
    && builtins.isString value
    && matches ".*(-i|IdentityFile)[ =]*['\"]*${lib.escapeRegex builtins.storeDir}.*" value;

  isSecret = key: value: file key value || password key value || url value || sshKey key value;

  # The keys of attribute sets and the lists below `at` that hold one.
  below =
    at: value:
    if builtins.isAttrs value then
      lib.concatLists (
        lib.mapAttrsToList (
          name: inner:
          lib.optional (isSecret name inner) "${at}.${name}" ++ below "${at}.${name}" inner
        ) value
      )
    else if builtins.isList value then
      lib.concatMap (inner: lib.optional (isSecret "" inner) at ++ below at inner) value
    else
      [ ];
in
settings: lib.unique (below "settings" settings)
