# One handler: what runs the tasks of one kind. Only what the module itself looks at is typed; every
# other key of `[handler.KIND]` is passed on, and check-config judges it.
{ lib, tomlType }:
let
  inherit (lib) mkOption types;
in
{
  freeformType = types.attrsOf tomlType;

  options = {
    type = mkOption {
      type = types.enum [
        "exec"
        "sql"
        "http"
        "git-analysis"
      ];
      example = "exec";
      description = ''
        What a task of this kind does: run a program (`exec`), a statement in the transaction that
        records the success (`sql`), a POST request (`http`), or analyse commits (`git-analysis`,
        which needs git, and openssh for ssh, in `extraPackages`).
      '';
    };

    command = mkOption {
      type = types.nullOr (types.listOf types.str);
      default = null;
      example = lib.literalExpression ''[ (lib.getExe pkgs.hello) "--greeting=hi" ]'';
      description = ''
        For `exec`: the program and its arguments; there is no shell. Name the program by its path in
        the store, or add its package to `extraPackages` and write its name only.
      '';
    };

    statement = mkOption {
      type = types.nullOr types.lines;
      default = null;
      example = "INSERT INTO inbox (id, body) VALUES ($2, $1)";
      description = ''
        For `sql`: the statement; `$1` is the payload (bytea), `$2` the task's id (text), `$3` the
        fence (bigint).
      '';
    };

    url = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "https://example.org/hook";
      description = "For `http`: where the payload is sent to.";
    };
  };
}
