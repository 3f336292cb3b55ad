<#
.SYNOPSIS
    Signs you in to Azure and Claude Code on this dev box: `operator-dataverse authenticate`.
.PARAMETER Config
    The operator.toml to use.
.PARAMETER DryRun
    Only say what would be run.
.PARAMETER Json
    Print one JSON document.
#>
[CmdletBinding()]
param(
    [string] $Config,
    [switch] $DryRun,
    [switch] $Json
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'
. (Join-Path $PSScriptRoot 'common.ps1')

$words = @('authenticate')
if ($DryRun) { $words += '--dry-run' }
if ($Json) { $words += '--json' }
Invoke-OperatorDataverse -Words $words -Config $Config
