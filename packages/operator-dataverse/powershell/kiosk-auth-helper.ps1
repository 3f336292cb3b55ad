<#
.SYNOPSIS
    One browser window for signing in, that fills the screen: `operator-dataverse auth-window`.
.PARAMETER Action
    Start, Stop or Status.
.PARAMETER Address
    The page to sign in at, for Start: the one that `az login` or `claude auth login` printed.
.PARAMETER Browser
    Which browser; by default the first one found.
.PARAMETER DryRun
    Only say what would be done.
.PARAMETER Json
    Print one JSON document.
.EXAMPLE
    .\kiosk-auth-helper.ps1 -Action Start -Address https://login.example.com/start
#>
[CmdletBinding()]
param(
    [Parameter(Mandatory = $true)] [ValidateSet('Start', 'Stop', 'Status')] [string] $Action,
    [string] $Address,
    [string] $Browser,
    [switch] $DryRun,
    [switch] $Json
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'
. (Join-Path $PSScriptRoot 'common.ps1')

$words = @('auth-window', $Action.ToLowerInvariant())
if ($Browser -and $Action -eq 'Start') { $words += @('--browser', $Browser) }
if ($DryRun -and $Action -ne 'Status') { $words += '--dry-run' }
if ($Json) { $words += '--json' }
if ($Action -eq 'Start') {
    if (-not $Address) {
        [Console]::Error.WriteLine('Error: Start needs -Address, the page that the sign-in printed.')
        exit 2
    }
    # What begins with a dash is an address all the same, and no option.
    $words += @('--', $Address)
}
Invoke-OperatorDataverse -Words $words
