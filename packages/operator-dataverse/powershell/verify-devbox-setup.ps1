<#
.SYNOPSIS
    Says whether this dev box is complete and healthy: `operator-dataverse verify`.
.PARAMETER Config
    The operator.toml to use.
.PARAMETER Json
    Print one JSON document.
#>
[CmdletBinding()]
param(
    [string] $Config,
    [switch] $Json
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'
. (Join-Path $PSScriptRoot 'common.ps1')

$words = @('verify')
if ($Json) { $words += '--json' }
Invoke-OperatorDataverse -Words $words -Config $Config
