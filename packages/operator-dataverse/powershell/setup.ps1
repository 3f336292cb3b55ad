<#
.SYNOPSIS
    Sets this dev box up: Python and the product first, then `operator-dataverse setup` for everything else.
.DESCRIPTION
    Without -Yes nothing is changed; the script says what is missing and which command brings it.
.PARAMETER Yes
    Install what is missing.
.PARAMETER Manager
    winget or choco; by default the one that is here.
.PARAMETER Config
    The operator.toml to use.
.PARAMETER DryRun
    Only say what would be done.
.PARAMETER Json
    Print one JSON document.
.EXAMPLE
    .\setup.ps1 -Yes
#>
[CmdletBinding()]
param(
    [switch] $Yes,
    [ValidateSet('winget', 'choco')] [string] $Manager,
    [string] $Config,
    [switch] $DryRun,
    [switch] $Json
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'
. (Join-Path $PSScriptRoot 'common.ps1')

function Test-Python {
    if (-not (Get-Command -Name 'py' -CommandType Application -ErrorAction SilentlyContinue)) {
        return $false
    }
    & py -3.12 -c 'pass'
    return $LASTEXITCODE -eq 0
}

function Invoke-Step {
    param([string] $Program, [string[]] $Words)
    # Standard output may be a document of the command that comes last.
    & $Program @Words | ForEach-Object { [Console]::Error.WriteLine($_) }
    if ($LASTEXITCODE -ne 0) {
        [Console]::Error.WriteLine("Error: $Program failed (exit code $LASTEXITCODE); what it printed says why.")
        exit 1
    }
}

if (-not (Find-OperatorDataverse)) {
    $root = Get-CheckoutRoot
    $venv = Join-Path $root '.venv'
    if (-not $Yes -or $DryRun) {
        [Console]::Error.WriteLine("operator-dataverse is missing; setup.ps1 -Yes installs Python 3.12 and it into $venv.")
        exit 1
    }
    if (-not (Test-Python)) {
        if ($Manager -eq 'choco') {
            Invoke-Step -Program 'choco' -Words @('install', '--yes', 'python312')
        }
        else {
            Invoke-Step -Program 'winget' -Words @(
                'install', '--exact', '--silent', '--accept-source-agreements', '--accept-package-agreements',
                '--source', 'winget', '--id', 'Python.Python.3.12'
            )
        }
        if (-not (Test-Python)) {
            [Console]::Error.WriteLine('Python is installed; open a new terminal and run setup.ps1 -Yes again.')
            exit 1
        }
    }
    Invoke-Step -Program 'py' -Words @('-3.12', '-m', 'venv', $venv)
    Invoke-Step -Program (Join-Path $venv 'Scripts\python.exe') -Words @(
        '-m', 'pip', 'install',
        '--editable', (Join-Path $root 'packages\operator-core'),
        '--editable', (Join-Path $root 'packages\operator-dataverse')
    )
}

$words = @('setup')
if ($Yes) { $words += '--yes' }
if ($Manager) { $words += @('--manager', $Manager) }
if ($DryRun) { $words += '--dry-run' }
if ($Json) { $words += '--json' }
Invoke-OperatorDataverse -Words $words -Config $Config
